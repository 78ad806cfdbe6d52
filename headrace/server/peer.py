"""The loop that serves one socket: bytes in, messages out of them, each answered before the next is begun.

A peer runs reads at once, hands writes to the `Writer`, and parks a command that returned `Wait` with the
`Notifier`. While it waits for either, later messages of the same client stay in the wire machine.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace import limits
from headrace.commands import standing
from headrace.commands.command import Command
from headrace.commands.failpoints import Failure
from headrace.commands.getmore import COMMAND as GET_MORE
from headrace.commands.request import Peer as PeerFacts
from headrace.commands.request import Request
from headrace.commands.wait import Wait
from headrace.errors import CommandError
from headrace.wire.connection import NEED_DATA, Connection, Message, ProtocolError
from headrace.wire.message import MORE_TO_COME, OP_QUERY
from headrace.wire.reply import encode_reply

if TYPE_CHECKING:
    from headrace.server.core import Core

LOG = logging.getLogger("headrace.server")


class Peer(asyncio.Protocol):
    """One client's socket."""

    __slots__ = (
        "_busy", "_core", "_full", "_message", "_paused", "_replies", "_request", "_started", "_transport",
        "_wire", "facts", "waiting",
    )  # fmt: skip

    def __init__(self, core: Core) -> None:
        self._core = core
        self._wire = Connection()
        self._busy = False
        self._full = False  # not read from, since it has sent too much ahead
        self._paused = False
        self._replies = 0
        self.waiting: Any = None  # the notifier's note of this peer while a command waits

    # What asyncio calls.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=limits.WRITE_BUFFER_BYTES_MAX)
        self.facts = self._core.welcome(self, transport)

    def data_received(self, data: bytes) -> None:
        self._core.engine.metrics["network.bytesIn"] += len(data)
        self._wire.receive(data)
        if not self._busy and not self._paused:
            self._serve()
        elif (
            not self._full
            and self._wire.unread_bytes > limits.READ_AHEAD_BYTES_MAX
            and not self._transport.is_closing()
        ):
            self._full = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._busy = True
        self._core.farewell(self)

    def _read_on(self) -> None:
        """Everything that came ahead of its turn is served: the client may send more."""
        self._full = False
        if not self._paused:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._paused = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._core.ending:
            return
        self._full = self._paused = False
        self._transport.resume_reading()
        if not self._busy:
            self._serve()

    # One message after the other.

    def _serve(self) -> None:
        """Answer messages until there is none, or one that must wait."""
        try:
            while not self._busy and not self._paused:
                message = self._wire.next_event()
                if message is NEED_DATA:
                    if self._full:
                        self._read_on()
                    return
                self._begin(message)  # type: ignore[arg-type]
        except ProtocolError as error:
            LOG.warning("%s sent what is not the MongoDB protocol, and is cut off: %s", self.facts.address, error)
            self._busy = True
            self._transport.close()

    def _begin(self, message: Message) -> None:
        engine = self._core.engine
        self._message = message
        if message.body.startswith(standing.BEGIN, 4):
            again = standing.recognised(engine, message.body, self.facts)
            if again is not None:
                self._request = again
                self.run(GET_MORE, again)
                return
        try:
            request = _request(message, self.facts)
            self._request = request
            command = engine.command(request)
            failing = engine.failpoints
            failure = failing.meet(engine, command, request) if failing.active else None
        except CommandError as error:
            blank = Request("", "", message.body, {}, self.facts)
            self._answer(engine.failure(error, blank))
            return
        if failure is None:
            self.start(command, request)
        else:
            self._fail(failure, command, request)

    def _fail(self, failure: Failure, command: Command, request: Request) -> None:
        """Do what a fail point wants before the command is run, or instead."""
        if failure.block_ms:
            self._busy = True
            unblocked = replace(failure, block_ms=0.0)
            self._core.loop.call_later(failure.block_ms / 1000, self._unblock, unblocked, command, request)
        elif failure.closes:
            self.drop()
        elif failure.error is not None:
            self._answer(self._core.engine.failure(failure.error, request, failure.labels))
        else:
            self.start(command, request)

    def _unblock(self, failure: Failure, command: Command, request: Request) -> None:
        self._busy = False
        if self._transport.is_closing():
            return
        self._fail(failure, command, request)
        if not self._busy:
            self._serve()

    def start(self, command: Command, request: Request) -> None:
        """Run a command whose turn it is."""
        if command.writes and (command.writes is True or command.writes(request)):
            self._busy = True
            self._core.writer.add(self, command, request)
        else:
            self.run(command, request)

    def run(self, command: Command, request: Request) -> None:
        """Run a reading command, now or again after a wait."""
        try:
            answer = self._core.engine.run_read(command, request)
        except Exception:
            LOG.exception("the command %s of %s failed inside the server", request.name, self.facts.address)
            answer = self._core.engine.failure(CommandError(1, "an error inside the server; see its log"), request)
        if type(answer) is Wait:
            self._busy = True
            self._core.notifier.park(self, command, request, answer)
            return
        self._answer(answer)  # type: ignore[arg-type]

    def finish(self, answer: bytes) -> None:
        """The answer of a command that had to wait; then on with what came meanwhile."""
        self._busy = False
        if self._transport.is_closing():
            return
        if self.facts.cut_off:
            self.drop()
            return
        self._answer(answer)
        self._serve()

    def _answer(self, answer: bytes) -> None:
        message = self._message
        if message.flags & MORE_TO_COME and message.opcode != OP_QUERY:
            return
        self._replies += 1
        sent = encode_reply(
            self._replies, message.request_id, answer, legacy=message.opcode == OP_QUERY, compressor=message.compressor
        )
        self._core.engine.metrics["network.bytesOut"] += len(sent)
        self._transport.write(sent)

    def wake(self, command: Command, request: Request) -> None:
        """The notifier's call: run the parked command again."""
        self._busy = False
        if self._transport.is_closing():
            return
        self.start(command, request)
        if not self._busy:
            self._serve()

    def hush(self) -> None:
        """Begin no further message: the server ends, and answers what it has begun."""
        if not self._paused and not self._transport.is_closing():
            self._transport.pause_reading()
        self._paused = True

    def drop(self) -> None:
        """Close the socket without an answer (a fail point, or the end of the server)."""
        self._busy = True
        self._transport.abort()


def _request(message: Message, facts: PeerFacts) -> Request:
    """The command in a message. Raises `CommandError` for one that names none, or no database."""
    body = message.body
    if message.opcode == OP_QUERY:
        return _legacy_request(message, facts)
    end = body.find(b"\x00", 5)
    if end < 0 or len(body) < 6:
        raise CommandError(22, "the message holds no command")
    name = body[5:end].decode(errors="replace")
    request = Request(name, "", body, message.sequences, facts)
    try:
        database = request.body.get("$db")
    except Exception as error:
        raise CommandError(22, f"invalid bson: {error}") from None
    if type(database) is not str:
        raise CommandError(40571, "OP_MSG requests require a $db argument")
    request.db = database
    return request


def _legacy_request(message: Message, facts: PeerFacts) -> Request:
    collection = message.collection or ""
    if not collection.endswith(".$cmd"):
        raise CommandError(5739101, "OP_QUERY is no longer supported. The client driver may require an upgrade.")
    request = Request("", collection[:-5], message.body, {}, facts)
    body = request.body
    inner = body.get("$query", body.get("query"))
    if isinstance(inner, dict):
        request = Request("", request.db, message.body, {}, facts, inner)
    request.name = next(iter(request.body), "")
    if request.name.lower() not in ("hello", "ismaster", "buildinfo", "ping"):
        raise CommandError(
            352, f"Unsupported OP_QUERY command: {request.name}. The client driver may require an upgrade."
        )
    return request
