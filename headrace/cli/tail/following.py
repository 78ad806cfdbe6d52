"""A change stream that resumes after lost connections, elections and invalidations, and what is done to its events.

An event is printed, or given to a program, and then the position after it is stored.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bson import json_util
from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError

from headrace.cli.arguments import Failed
from headrace.cli.connection import Client, Document, failure
from headrace.cli.tail.lines import EventLines
from headrace.cli.tail.start import EARLIEST
from headrace.cli.terminal import Painter, one_line, width
from headrace.spark.mongodb.fragments import SPLIT_STAGE, STAGE_UNKNOWN_CODES, FragmentAssembler


class StateFile:
    """The file of `--state`, with the position after the last handled event.

        {"namespace": "shop.orders", "resumeToken": {"_data": "82..."}}

    Rule: the whole file is replaced, and only after the event is handled. So an event is handled at least once, and
    again only if the process ends before the position is stored.
    """

    def __init__(self, path: Path, namespace: str) -> None:
        self.path = path
        self._namespace = namespace
        self._stored: Mapping[str, Any] | None = None

    def read(self) -> dict[str, Any] | None:
        """Return the resume token, None if there is no file yet. Raises Failed for any other file or stream."""
        try:
            state = json.loads(self.path.read_text("utf-8"))
            token = json_util.loads(json.dumps(state["resumeToken"]))
            namespace = state["namespace"]
        except FileNotFoundError:
            if not os.access(self.path.parent, os.W_OK):
                raise Failed(
                    f"the position cannot be stored in {self.path.parent}: no such folder, or no right"
                ) from None
            return None
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise Failed(f"{self.path} is not a state file of `headrace tail`: {error}") from None
        if namespace != self._namespace:
            raise Failed(
                f"{self.path} is the state of {namespace or 'all databases'}, not of {self._namespace or 'all'}"
            )
        return dict(token)

    def write(self, token: Mapping[str, Any] | None) -> None:
        """Store a position durably if it differs from the last one. Raises Failed."""
        if token is None or token == self._stored:
            return
        text = json_util.dumps({"namespace": self._namespace, "resumeToken": token})
        temporary = self.path.with_name(f"{self.path.name}.tmp")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(f"{text}\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except OSError as error:
            raise Failed(f"the position cannot be stored: {error}") from None
        self._stored = dict(token)


RETRY_SECONDS: Final = (0.5, 1.0, 2.0, 5.0)
"""The wait before each attempt to reconnect; the last one repeats."""
AWAIT_MS: Final = 1_000
_RESUMABLE: Final = "ResumableChangeStreamError"
_UNKNOWN_OPTION_CODES: Final = frozenset({2, 9, 40415})
"""Error codes for an option of `$changeStream`, or a value of one, that the server does not know."""


@dataclass
class Follow:
    """The stream that a command line asks for."""

    uri: str
    database: str
    collection: str
    pipeline: list[dict[str, Any]]
    start: dict[str, Any]
    """The options of `$changeStream` that say where the stream begins."""
    full_document: str | None = None
    show_expanded_events: bool = False
    state: StateFile | None = None
    _assembler: FragmentAssembler = field(default_factory=FragmentAssembler)
    _splits: bool = True
    """Whether the server knows `$changeStreamSplitLargeEvent`: MongoDB from 6.0.9 on."""
    _has_images: bool = True
    """Whether the server knows `fullDocumentBeforeChange`: MongoDB from 6.0 on."""

    def events(self, client: Client) -> Generator[tuple[Document | None, Document | None]]:
        """Yield (event, resume token after it), and (None, token) when everything is read.

        The generator never ends by itself; its `close` closes the cursor. The fragments of an event of more than 16 MB
        are assembled. Raises PyMongoError for errors that a retry cannot solve.
        """
        attempts = 0
        while True:
            try:
                for event, token in self._stream(client):
                    attempts = 0
                    if token is not None:
                        self.start = {"startAfter": token}
                    yield event, token
            except PyMongoError as error:
                if not _is_resumable(error):
                    raise
                if not attempts:
                    print(f"headrace: {failure(error)}; trying again", file=sys.stderr, flush=True)
                time.sleep(RETRY_SECONDS[min(attempts, len(RETRY_SECONDS) - 1)])
                attempts += 1

    def _stream(self, client: Client) -> Iterator[tuple[Document | None, Document | None]]:
        """Yield the events of one cursor until it ends."""
        self._assembler.reset()
        with self._open(client) as cursor:
            while cursor.alive:
                event = cursor.try_next()
                complete = [] if event is None else self._assembler.assemble([event])
                position = self._assembler.position_of(cursor.resume_token)
                token = position.document() if position.text else None
                if complete:
                    yield complete[0], token
                elif event is None:
                    yield None, token

    def _open(self, client: Client) -> Any:
        while True:
            try:
                return self._watched(client)
            except OperationFailure as error:
                if self._splits and error.code in STAGE_UNKNOWN_CODES:
                    self._splits = False
                elif self._has_images and error.code in _UNKNOWN_OPTION_CODES and "fullDocumentBefore" in str(error):
                    self._has_images = False
                else:
                    raise

    def _watched(self, client: Client) -> Any:
        target: Any = client
        if self.database:
            target = client.get_database(self.database)
            if self.collection:
                target = target.get_collection(self.collection)
        options: dict[str, Any] = {"max_await_time_ms": AWAIT_MS}
        if self._has_images:
            options["full_document_before_change"] = "whenAvailable"
        if self.full_document:
            options["full_document"] = self.full_document
        if self.show_expanded_events:
            options["show_expanded_events"] = True
        if self.start.get(EARLIEST):
            self.start = {"startAtOperationTime": _oldest(client)}
        if "startAfter" in self.start:
            options["start_after"] = self.start["startAfter"]
        if "startAtOperationTime" in self.start:
            options["start_at_operation_time"] = self.start["startAtOperationTime"]
        return target.watch([*self.pipeline, SPLIT_STAGE] if self._splits else self.pipeline, **options)


def _is_resumable(error: PyMongoError) -> bool:
    return isinstance(error, ConnectionFailure) or error.has_error_label(_RESUMABLE)


def _oldest(client: Client) -> Any:
    """Return the time of the oplog's oldest entry."""
    oplog = client.get_database("local").get_collection("oplog.rs")
    for entry in oplog.find({}, {"ts": 1}).sort("$natural", 1).limit(1):
        return entry["ts"]
    raise OperationFailure("the server has no oplog: it is not a replica set", 40573)


STATE_SECONDS: Final = 1.0
"""The interval between stored positions while events are only printed; with a program it is stored after each event."""


class EventHandler:
    """Handles the events of one command line."""

    def __init__(
        self, follow: Follow, *, as_json: bool, program: str | None, fields: Sequence[tuple[str, ...]]
    ) -> None:
        self._follow = follow
        self._as_json = as_json
        self._program = program
        self._lines = EventLines(Painter(), width() if sys.stdout.isatty() else None, fields)
        self._stored_at = 0.0

    def run(self, client: Client, count_max: int | None) -> int:
        """Handle events until `count_max` are done. At every end, close the cursor and store the position.

        Raises Failed, and BrokenPipeError when the reader of the output is gone.
        """
        count, position = 0, None
        try:
            with closing(self._follow.events(client)) as events:
                for event, token in events:
                    if event is None:
                        self._look_at_output()
                    else:
                        self._handle(event)
                        count += 1
                    position = token or position
                    is_last = count == count_max
                    self._store(position, now=is_last or event is None or self._program is not None)
                    if is_last:
                        break
        except BaseException:
            self._store(position, now=True)
            raise
        return 0

    def _look_at_output(self) -> None:
        """Raise BrokenPipeError if the output is a pipe without a reader; without events no write would raise it."""
        if self._program is None or self._as_json:
            poll = select.poll()
            with suppress(OSError, ValueError):  # the output is no file in a test or a notebook
                poll.register(sys.stdout.fileno(), 0)
            if any(happened & select.POLLERR for _, happened in poll.poll(0)):
                raise BrokenPipeError

    def _handle(self, event: Mapping[str, Any]) -> None:
        if self._program is not None:
            self._run_program(self._program, event)
        if self._as_json:
            print(one_line(self._lines.chosen(event)), flush=True)
        elif self._program is None:
            print("\n".join(self._lines.of(event)), flush=True)

    def _run_program(self, program: str, event: Mapping[str, Any]) -> None:
        """Run the program. Raises Failed if it fails; then the position is not stored, and the event comes again."""
        namespace = event.get("ns") or {}
        environment = os.environ | {
            "HEADRACE_OPERATION_TYPE": str(event.get("operationType", "")),
            "HEADRACE_DATABASE": str(namespace.get("db", "")),
            "HEADRACE_COLLECTION": str(namespace.get("coll", "")),
            "HEADRACE_RESUME_TOKEN": json.dumps({"_data": event["_id"]["_data"]}),
        }
        text = one_line(self._lines.chosen(event))
        done = subprocess.run(program, shell=True, check=False, input=text.encode(), env=environment)
        if done.returncode:
            raise Failed(f"the command {program!r} failed with status {done.returncode}; its event is not done")

    def _store(self, position: Mapping[str, Any] | None, *, now: bool) -> None:
        state = self._follow.state
        if state is not None and (now or time.monotonic() - self._stored_at > STATE_SECONDS):
            state.write(position)
            self._stored_at = time.monotonic()
