"""The protocol of one socket: it turns bytes into messages and answers each before the next begins.

A peer runs reads at once, hands writes to the `Writer`, and parks a command that returned `Wait` with the `Notifier`.
Meanwhile later messages of the same client stay in the wire machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.commands.reading.get_more import COMMAND as GET_MORE
from headrace.dispatch import exhaust, repeated_getmore
from headrace.dispatch.command import Command
from headrace.dispatch.fail_points import Failure
from headrace.dispatch.request import (
    REMEMBERED,
    Request,
    UnreadRequest,
    parse_legacy_query,
    parse_message,
    remember,
)
from headrace.dispatch.wait import Wait
from headrace.errors import AnsweredError, CommandError, Interrupted
from headrace.memory_budget import Account
from headrace.query.operation_memory import size_of
from headrace.server.failures import log_failure, read_error
from headrace.server.notifier import NEVER_MS
from headrace.server.repeated_messages import repeated_message
from headrace.server.scheduler import EAGER_COUNT
from headrace.turns import Turn, tick
from headrace.wire.connection import NEED_DATA, Connection, Message, UnopenedMessage
from headrace.wire.message import (
    EXHAUST_ALLOWED,
    HTTP_RESPONSE,
    MORE_TO_COME,
    OP_MSG,
    OP_QUERY,
    HttpRequest,
    ProtocolError,
    TlsOnPlainSocket,
)
from headrace.wire.reply_message import encode_reply, plain_head, plain_reply

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from headrace.server.core import Core

_DECODED_BYTES_MAX: Final = limits.DECODED_BYTES_MAX


_NO_MESSAGE = Message(0, OP_MSG, 0, b"", {})


class Peer(asyncio.Protocol):
    """The protocol of one client's socket."""

    __slots__ = (
        "_account", "_busy", "_core", "_full", "_interruption", "_is_held", "_message", "_message_bytes",
        "_next", "_paused", "_plain", "_replies", "_transport", "_wire", "client", "request", "timer_ms", "wait_timer",
        "waiting",
    )  # fmt: skip

    def __init__(self, core: Core) -> None:
        self._core = core
        self._wire = Connection()
        self._message = _NO_MESSAGE
        self._plain = Message(0, OP_MSG, 0, b"", _NO_MESSAGE.sequences)  # reused by repeated commands
        self._message_bytes = 0  # size of the long message that is being answered
        self._account: Account | None = None  # for large unprocessed and unread data
        self._busy = False
        self._full = False  # reading is paused because the client has sent too much ahead
        self._paused = False
        self._replies = 0
        self._next: Message | None = None  # the next message, if the client exhausts a cursor or streams hello
        self._is_held = False  # its command has not begun: a fail point blocks it
        self._interruption: Interrupted | None = None  # ends the held command
        self.request: Request | None = None
        """The command that is being answered or that will run again."""
        self.waiting: Any = None  # the notifier's entry for the waiting command
        self.wait_timer: TimerHandle | None = None
        """Wakes the waiting command at its deadline, or comes earlier and is set again: most waits set no timer."""
        self.timer_ms = NEVER_MS  # when it comes, on the loop's clock

    @property
    def is_acknowledged(self) -> bool:
        """Whether the client wants an answer to its present message."""
        return not self._message.flags & MORE_TO_COME

    # Called by asyncio.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=limits.WRITE_BUFFER_BYTES_MAX)
        self.client = self._core.peer_connected(self, transport)

    def data_received(self, data: bytes) -> None:
        self._core.engine.metrics["network.bytesIn"] += len(data)
        if self._wire.is_at_rest and not self._busy and not self._paused and self._account is None:
            again = repeated_message(data, self.client)
            if again is not None:
                message = self._message = self._plain
                message.request_id, request = again
                message.body = request.raw
                try:
                    self._begin_request(request)
                except Exception as error:
                    self._close_after(error)
                return
        unread_bytes = self._wire.receive(data)
        if not self._busy and not self._paused:
            self._serve()
        elif not self._full and unread_bytes > limits.READ_AHEAD_BYTES_MAX and not self._transport.is_closing():
            self._full = True
            self._transport.pause_reading()
        if unread_bytes > limits.CONNECTION_BYTES_FREE and self._wire.unread_bytes > limits.CONNECTION_BYTES_FREE:
            self._count()

    def _count(self) -> None:
        """Account for data that the client has sent ahead, its present message, and replies that it has not read."""
        size = self._wire.unread_bytes + self._message_bytes + self._transport.get_write_buffer_size()
        if self._account is None:
            if size <= limits.CONNECTION_BYTES_FREE or self._transport.is_closing():
                return
            self._account = self._core.engine.memory.account(f"the connection of {self.client.address}", self._cut_off)
        elif size <= limits.CONNECTION_BYTES_FREE:
            self._account.close()
            self._account = None
            return
        with contextlib.suppress(CommandError):  # this connection itself was cut off
            self._account.set(size)

    def _cut_off(self) -> None:
        """Close the connection, because the memory budget needs its memory."""
        self._wire = Connection()
        self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._busy = True
        if self._account is not None:
            self._account.close()
        self._wire = Connection()
        self._core.peer_disconnected(self)
        self._message, self.request = _NO_MESSAGE, None

    def _read_on(self) -> None:
        """Resume reading: all messages that were sent ahead are answered."""
        self._full = False
        if not self._paused:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._paused = True
        self._transport.pause_reading()
        self._count()

    def resume_writing(self) -> None:
        if self._core.ending:
            return
        self._full = self._paused = False
        self._transport.resume_reading()
        self._count()
        if not self._busy:
            self._serve()

    # One message after the other.

    def _serve(self) -> None:
        """Answer messages until there are none left, or one must wait."""
        wire, served = self._wire, 0
        try:
            while not self._busy and not self._paused:
                if self._next is None and not wire.may_have_event:
                    break
                if served and (served >= EAGER_COUNT or not self._core.scheduler.has_time()):
                    self._busy = True
                    self._core.scheduler.serve_later(self)
                    return
                served += 1
                message, self._next = self._next or wire.next_event(), None
                if message is NEED_DATA:
                    break
                self._begin(message)  # type: ignore[arg-type]
            else:
                return
            if self._full:
                self._read_on()
            if self._message_bytes or self._account is not None:
                self._message, self._message_bytes = _NO_MESSAGE, 0
                wire.shrink()
                self._count()
        except ProtocolError as error:
            self._close_invalid(error)
        except Exception as error:
            self._close_after(error)

    def serve_on(self) -> None:
        """Continue with an eager client at its turn, unless it has left."""
        if not self._transport.is_closing():
            self._busy = False
            self._serve()

    def _close_invalid(self, error: ProtocolError) -> None:
        error.__traceback__ = error.__cause__ = error.__context__ = (
            None  # its frames hold the connection, which holds the error
        )
        if isinstance(error, TlsOnPlainSocket):
            self._core.tls_on_plain_socket.log(f"{self.client.address} is cut off: {error}")
        else:
            self._core.invalid_messages.log(
                f"{self.client.address} sent an invalid message; its connection is closed: {error}"
            )
        self._busy = True
        if isinstance(error, HttpRequest):
            self._send(HTTP_RESPONSE)
        self._transport.close()

    def _close_after(self, error: Exception) -> None:
        """Close the connection after an exception in this client's turn. Other clients are not affected."""
        log_failure(f"the connection of {self.client.address} is closed after an error inside the server", error)
        self._busy = True
        with contextlib.suppress(Exception):
            self._transport.abort()

    def _begin(self, message: Message) -> None:
        engine = self._core.engine
        self._message = message
        if message.body.startswith(repeated_getmore.BEGIN, 4):
            again = repeated_getmore.recognised(engine, message.body, self.client)
            if again is not None:
                self.request = again
                if again.cursor.is_slow:
                    self._busy = True
                    self._core.notifier.queue(self, GET_MORE, again)
                else:
                    self.run(GET_MORE, again)
                return
        if len(message.body) > _DECODED_BYTES_MAX or type(message) is UnopenedMessage:
            self._busy = True
            self._message_bytes = message.unpacked_bytes if type(message) is UnopenedMessage else len(message.body)
            self._count()
            if self._transport.is_closing():
                return
            self._core.scheduler.run_message(self, self._parsed, self._parse_long, message)
            return
        try:
            if message.opcode == OP_QUERY:
                request = parse_legacy_query(message.collection or "", message.body, self.client)
            else:
                request = parse_message(message.body, message.sequences, self.client)
        except Exception as error:
            self._refuse(message, error)
            return
        self._begin_request(request)

    def _parse_long(self, message: Message) -> Request:
        message = self._message = message.opened()
        if message.opcode == OP_QUERY:
            return parse_legacy_query(message.collection or "", message.body, self.client)
        request = parse_message(message.body, message.sequences, self.client)
        tick()
        self._message_bytes += size_of(request.body)
        tick()  # the command may take as long again before its first pause
        return request

    def _parsed(self, request: Request | Exception) -> None:
        """Continue with a long message that was parsed or refused."""
        try:
            self._busy = False
            if self._transport.is_closing():
                return
            if isinstance(request, ProtocolError):
                self._close_invalid(request)
                return
            self._count()
            if self._transport.is_closing():
                return
            if isinstance(request, Exception):
                self._refuse(self._message, request)
            else:
                self._begin_request(request)
            if not self._busy:
                self._serve()
        except Exception as error:
            self._close_after(error)

    def _refuse(self, message: Message, error: Exception, request: Request | None = None) -> None:
        """Answer a message that could not be parsed as a command, or whose command, `request`, may not run."""
        if isinstance(error, AnsweredError):
            answer = error
        else:
            log_failure(f"a message of {self.client.address} failed inside the server", error)
            answer = read_error(error)
        asked = request or UnreadRequest("", "", message.body, self.client)
        self._answer(self._core.engine.failure(answer, asked))

    def _begin_request(self, request: Request) -> None:
        engine = self._core.engine
        try:
            self.request = request
            command = engine.command(request)
            if self._message.flags & EXHAUST_ALLOWED and self._message.opcode == OP_MSG:
                exhaust.check(request)
            if request.repeated is None and (request.sequences or request.name in REMEMBERED):
                remember(request)
            failing = engine.fail_points
            failure = failing.before_command(engine, command, request) if failing.active else None
        except Exception as error:
            self._refuse(self._message, error, request)
            return
        if failure is not None:
            self._fail(failure, command, request)
        elif command.writes is True:  # like `start`
            self._busy = True
            self._core.writer.add(self, command, request)
        elif command.writes is False:
            self.run(command, request)
        else:
            self.start(command, request)

    def _fail(self, failure: Failure, command: Command, request: Request) -> None:
        """Apply a fail point before the command runs, or instead of it."""
        if failure.block_ms:
            self._busy = self._is_held = True
            unblocked = replace(failure, block_ms=0.0)
            self._core.loop.call_later(failure.block_ms / 1000, self._unblock, unblocked, command, request)
        elif failure.closes:
            self.drop()
        elif failure.error is not None:
            self._answer(self._core.engine.failure(failure.error, request, failure.labels))
        else:
            self.start(command, request)

    def interrupt(self, error: Interrupted) -> None:
        """Interrupt a held command: it ends when its hold is over."""
        if self._is_held:
            self._interruption = error

    def _unblock(self, failure: Failure, command: Command, request: Request) -> None:
        try:
            self._busy = self._is_held = False
            interruption, self._interruption = self._interruption, None
            if self._transport.is_closing():
                return
            if interruption is not None:
                self._answer(self._core.engine.failure(interruption, request))
            else:
                self._fail(failure, command, request)
            if not self._busy:
                self._serve()
        except Exception as error:
            self._close_after(error)

    def start(self, command: Command, request: Request) -> None:
        """Run a command at its turn."""
        if command.writes and (command.writes is True or command.writes(request)):
            self._busy = True
            self._core.writer.add(self, command, request)
        else:
            self.run(command, request)

    def run(self, command: Command, request: Request) -> None:
        """Run a reading command, for the first time or again after a wait."""
        engine = self._core.engine
        answer: bytes | Wait | Turn | None
        try:
            if request.cursor is not None and (not request.cursor.lags or self._core.readers is None):
                answer = engine.run_stream(command, request)
            elif request.repeated is None or (answer := engine.run_again(command, request)) is None:
                if command.pauses and (command.pauses is True or command.pauses(engine, request)):
                    answer = self._core.scheduler.run_read(self, command, request)
                else:
                    answer = engine.run_read(command, request)
        except Exception as error:
            answer = self.failed(request, error)
        if type(answer) is bytes:
            self._answer(answer)
            return
        self._busy = True
        if type(answer) is Wait:
            self._core.notifier.park(self, command, request, answer)

    def failed(self, request: Request, error: Exception) -> bytes:
        """Log a command that failed inside the server; return its reply."""
        log_failure(f"the command {request.name} of {self.client.address} failed inside the server", error)
        return self._core.engine.failure(read_error(error), request)

    def go_on(self, command: Command, request: Request, answer: bytes | Wait | Exception) -> None:
        """Answer a command that had paused, or park it."""
        if type(answer) is Wait:
            self.wait(command, request, answer)
        else:
            self.finish(self.failed(request, answer) if isinstance(answer, Exception) else answer)  # type: ignore[arg-type]

    def finish(self, answer: bytes) -> None:
        """Send the answer of a command that had to wait, and continue with messages that came meanwhile."""
        try:
            self._busy = False
            if self._transport.is_closing():
                return
            if self.client.cut_off:
                self.drop()
                return
            self._answer(answer)
            if not (
                self._wire.is_at_rest and self._next is None and self._account is None
                and not self._full and not self._message_bytes
            ):  # fmt: skip
                self._serve()
        except Exception as error:
            self._close_after(error)

    def wait(self, command: Command, request: Request, wait: Wait) -> None:
        """Park a command that cannot be answered yet."""
        try:
            self._core.notifier.park(self, command, request, wait)
        except Exception as error:
            self._close_after(error)

    def _answer(self, answer: bytes) -> None:
        message, request, self.request = self._message, self.request, None
        if message is self._plain and len(answer) <= _DECODED_BYTES_MAX:  # the usual case, without further checks
            self._replies = number = self._replies + 1 & limits.REPLY_ID_MAX
            sent = plain_reply(number, message.request_id, answer)
            self._core.engine.metrics["network.bytesOut"] += len(sent)
            self._transport.write(sent)
            return
        opcode, compressor, flags = message.opcode, message.compressor, 0
        if message.flags & MORE_TO_COME and opcode != OP_QUERY:
            return
        self._replies = number = self._replies + 1 & limits.REPLY_ID_MAX
        if message.flags & EXHAUST_ALLOWED and opcode != OP_QUERY and request is not None:
            flags = self._repeat(message, request, answer, number)
        is_long = len(answer) > _DECODED_BYTES_MAX
        if opcode == OP_QUERY or compressor is not None:
            self._answer_encoded(number, answer, is_long=is_long, flags=flags)
        elif is_long:  # copying it would take long
            self._send(plain_head(number, message.request_id, len(answer), flags))
            self._send(answer)
        else:
            sent = plain_reply(number, message.request_id, answer, flags)
            self._core.engine.metrics["network.bytesOut"] += len(sent)
            self._transport.write(sent)

    def _repeat(self, message: Message, request: Request, answer: bytes, number: int) -> int:
        """Prepare the next run of an exhausting request, if there is one; return the flags of its answer.

        `number`: the answer's number. The next reply refers to it.
        """
        body = exhaust.next_body(request, answer)
        if body is None:
            return 0
        self._next = Message(number, OP_MSG, message.flags, body, {})
        self._next.compressor = message.compressor
        self.request = request
        return MORE_TO_COME

    def _answer_encoded(self, number: int, answer: bytes, *, is_long: bool, flags: int) -> None:
        """Send the answer to a legacy or compressed message."""
        message = self._message
        legacy, compressor = message.opcode == OP_QUERY, message.compressor
        if compressor is not None and is_long:
            self._busy = True
            encode = partial(encode_reply, legacy=legacy, compressor=compressor, flags=flags)
            self._core.scheduler.run_message(self, self._compressed, encode, number, message.request_id, answer)
        else:
            answered = message.request_id
            self._send(encode_reply(number, answered, answer, legacy=legacy, compressor=compressor, flags=flags))

    def _compressed(self, sent: bytes | Exception) -> None:
        """Send a long reply that was compressed."""
        try:
            self._busy = False
            if self._transport.is_closing():
                return
            if isinstance(sent, Exception):
                raise sent
            self._send(sent)
            self._serve()
        except Exception as error:
            self._close_after(error)

    def _send(self, sent: bytes) -> None:
        self._core.engine.metrics["network.bytesOut"] += len(sent)
        self._transport.write(sent)

    def wake(self, command: Command, request: Request) -> None:
        """Run the parked command again. The notifier calls this."""
        try:
            self._busy = False
            if self._transport.is_closing():
                return
            if request.cursor is None:
                self.start(command, request)
            else:
                self.run(command, request)
            if not self._busy:
                self._serve()
        except Exception as error:
            self._close_after(error)

    def stop_reading(self) -> None:
        """Begin no further message, because the server ends. Messages that have begun are answered."""
        if not self._paused and not self._transport.is_closing():
            self._transport.pause_reading()
        self._paused = True

    def drop(self) -> None:
        """Close the socket without an answer (a fail point, or the end of the server)."""
        self._busy = True
        self._transport.abort()
