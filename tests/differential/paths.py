"""Ways to the same answer: a server, and one question asked through each of its indexes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

from bson import Binary, Int64

from headrace import limits
from headrace.cursors import index_scan
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.execution import read_plan
from headrace.execution.planner import choice, index_access, trial
from headrace.query.match import parse_filter
from headrace.query.stages import joins
from headrace.store.catalog_changes import collect_garbage
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.turns import Turn, Turns
from headrace.values.bson import decode
from tests.differential.documents import raw
from tests.differential.model import Difference
from tests.differential.reader import DrivenReader

Document = dict[str, Any]

LIMITS: Final[dict[str, tuple[Any, str, list[int]]]] = {
    "build": (limits, "BUILD_COUNT", [1, 2, 6]),
    "build entries": (limits, "BUILD_ENTRY_COUNT", [1, 2]),
    "columns": (limits, "DECODED_COUNT", [1, 2, 3]),
    "column bytes": (limits, "COLUMN_BYTES", [1, 80]),
    "count": (limits, "COUNT_COUNT", [1, 2, 3]),
    "distinct": (limits, "DISTINCT_VALUE_COUNT", [1, 2]),
    "growth": (trial, "_EXCESS", [1]),
    "ids": (limits, "ID_LOOKUP_COUNT_MAX", [1]),
    "lookup": (joins, "_LOOKUP_WEIGHT", [0]),
    "merged": (read_plan, "MERGED_COUNT", [1, 2]),
    "ranges": (index_access, "RANGE_COUNT_MAX", [1, 2]),
    "results": (trial, "RESULT_COUNT", [1, 2]),
    "scan": (index_scan, "RANGE_COUNT", [1, 2]),
    "scans": (index_access, "SCAN_COUNT_MAX", [2]),
    "skip": (choice, "_DOCUMENT_COUNT", [1]),
    "stage": (limits, "STAGE_BYTES_MAX", [3000]),
    "transaction": (limits, "TRANSACTION_COUNT_COUNT", [1, 2]),
    "view": (limits, "VIEW_CHUNK_COUNT", [1, 2, 3]),
    "works": (trial, "WORK_COUNT", [2, 5]),
}
"""Limits by name, with the small values that make few documents reach them."""


@contextmanager
def small_limits(chosen: dict[str, int]) -> Iterator[None]:
    """Lower limits, by their names in `LIMITS`; trials never end because of the time that they take."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(trial, "TRIAL_SECONDS", 1e9))
        for name, value in chosen.items():
            module, attribute, _ = LIMITS[name]
            stack.enter_context(mock.patch.object(module, attribute, value))
        yield


class Paths:
    """A server with a collection `c`, whose commands are sent inside a transaction where one is open."""

    def __init__(self, *, in_reader: bool = False) -> None:
        """`in_reader`: a reader process answers what it may, and has its own limits."""
        self.at = DrivenServer(clock=FakeClock())
        self.reader = DrivenReader(self.at) if in_reader else None
        self.at.between = self._during
        self.open: Document | None = None
        """The fields that make a command one of the open transaction."""
        self.published: list[Document] | None = None
        """The documents before the commit that is under way; None where that is not known."""
        self.filters: list[Document] = []
        """Filters that are asked about during commits."""
        self._names: list[str] = []
        self._indexes: list[Document] | None = None
        self.last: Document = {}
        """The command that was sent last."""
        self._number = 0

    def close(self) -> None:
        """Close the server."""
        if self.reader is not None:
            self.reader.close()
        self.at.close()

    def begin(self) -> None:
        """Begin a transaction, which reads as of now."""
        self._number += 1
        self.open = {"lsid": {"id": Binary(b"d" * 16, 4)}, "txnNumber": Int64(self._number), "autocommit": False}
        self.ask({"find": "c", "limit": 1}, first=True)

    def end(self, command: str) -> Document:
        """Commit or abort the open transaction."""
        fields, self.open = self.open or {}, None
        return self.send({command: 1, **fields}, database="admin")

    def ask(self, body: Document, *, first: bool = False) -> Document:
        """Return the reply to a command of the open transaction, if one is open."""
        if self.open is not None:
            body = {**body, **self.open, **({"startTransaction": True} if first else {})}
        return self.send(body)

    def send(self, body: Document, *, database: str = "t") -> Document:
        """Return the reply to a command outside of the transaction, also to one that failed."""
        self.last = body
        if self.reader is not None and (answer := self.reader.run(database, body)) is not None:
            return answer
        reply = self.at.run(database, body)
        if isinstance(reply, Wait):
            return {"ok": 0.0, "code": 0, "errmsg": "it would wait"}
        return reply

    def expect(self, documents: list[Document] | None) -> None:
        """Note what others see until the next commit is published; None: compare nothing."""
        self.published = None
        self.forget_indexes()
        self._names = [] if documents is None else [index["name"] for index in self.indexes()]
        self.published = documents

    def _during(self, stage: str) -> None:
        """Read between the steps of a commit: what is not published is not there."""
        if self.published is None:
            return
        published, self.published = self.published, None
        open_fields, self.open, last = self.open, None, self.last
        reader, self.reader = self.reader, None  # for which a server would wait until the commit is published
        try:
            self._see(published)
        finally:
            self.open, self.published, self.last = open_fields, published, last
            self.reader = reader

    def _see(self, published: list[Document]) -> None:
        self.forget_indexes()
        names = [index["name"] for index in self.indexes()]
        if names != self._names:
            raise Difference(f"indexes {names} before the commit was published, expected {self._names}")
        counted = self.send({"count": "c"})["n"]
        if counted != len(published):
            raise Difference(f"{counted} counted before the commit was published, expected {len(published)}")
        wanted = Counter(raw(document) for document in published)
        for spec in ({}, *self.filters):
            matches = parse_filter(decode(raw(spec))).test
            expected = sorted(document for document in wanted.elements() if matches(decode(document)))
            rows = self.rows({"find": "c", "filter": spec}, None)
            if sorted(map(raw, rows)) != expected:
                raise Difference(f"{rows} for {spec} before the commit was published")

    def rows(self, body: Document, batch: int | None, between: Callable[[], None] = lambda: None) -> list[Document]:
        """Return all documents of a cursor, read in batches; `between` is called before each but the first, which has
        none for a batch of 0.

        Raises the `CommandError` of a command that fails.
        """
        size = {"batchSize": 1000 if batch is None else batch}
        reply = checked(self.ask({**body, **({"cursor": size} if "aggregate" in body else size)}))["cursor"]
        found: list[Document] = reply["firstBatch"]
        command = self.last
        while reply["id"]:
            between()
            more = {"getMore": reply["id"], "collection": reply["ns"].partition(".")[2], "batchSize": batch or 2}
            reply = checked(self.ask(more))["cursor"]
            found += reply["nextBatch"]
        self.last = command
        return found

    def in_turns(self, body: Document, between: Callable[[], None]) -> list[Document]:
        """Return the first batch of a read that pauses at each tick; `between` is called at each pause."""
        turns, request = Turns(seconds=0.0), self.at.request("t", body)
        self.last = body
        engine = self.at.engine
        try:
            result = turns.run(engine.run_read, engine.command(request), request)
            while isinstance(result, Turn):
                between()
                result = turns.resume(result)
        except CommandError as error:
            result = engine.failure(error, request)
        self.last = body
        found: list[Document] = checked(decode(result))["cursor"]["firstBatch"]
        return found

    def collect(self) -> None:
        """Remove the entries of dropped indexes, as the server does in the background."""
        goes_on = True
        while goes_on:
            txn = self.at.store.begin()
            goes_on = collect_garbage(txn, 1000)
            self.at.store.commit(txn)

    def indexes(self) -> list[Document]:
        """Return the specifications of all indexes."""
        if self._indexes is None:
            reply = self.send({"listIndexes": "c", "cursor": {"batchSize": 1000}})
            self._indexes = reply["cursor"]["firstBatch"] if "cursor" in reply else []
        return self._indexes

    def forget_indexes(self) -> None:
        """Ask for the indexes again: they may have changed."""
        self._indexes = None


def checked(reply: Document) -> Document:
    """Return a reply. Raises the `CommandError` of one that failed, also of its first statement that did."""
    if reply["ok"] != 1.0:
        raise CommandError(reply["code"], reply["errmsg"])
    if reply.get("writeErrors"):
        first = reply["writeErrors"][0]
        raise CommandError(first["code"], first["errmsg"])
    return reply
