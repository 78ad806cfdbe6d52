"""A change stream that resumes after lost connections, elections and invalidations until it is closed."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError

from headrace.cli.connection import Client, Document, failure
from headrace.cli.tail.start import EARLIEST
from headrace.cli.tail.state import StateFile
from headrace.spark.mongodb.fragments import SPLIT_STAGE, STAGE_UNKNOWN_CODES, FragmentAssembler

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
