"""The tables of sinks as `verify` reads them: as a mirror's rows and state, whatever the kind of table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace import limits
from headrace.clock import SystemClock
from headrace.spark.mongodb.mongodb_stream import position_after
from headrace.spark.rows.events import SERVER, SNAPSHOT
from headrace.spark.rows.key_identity import of_server
from headrace.spark.rows.tokens import Token
from headrace.spark.sinks.contract import MicroBatch
from headrace.spark.tables.event_log import EventLog
from headrace.spark.tables.fold import MirrorState, key_of
from headrace.spark.tables.history_table import VersionTable
from headrace.spark.tables.mirror_table import ReadMirror
from headrace.spark.tables.mongodb.mongodb_mirror import MongoMirror
from headrace.spark.verify.compare_mirror import CollectionUnstable

_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class ReadTable:
    """See `mirror_table.ReadMirror`."""

    position: Callable[[], MirrorState]
    read: Callable[[], pa.Table]


def rows_of_server(mirror: ReadMirror, server: str) -> ReadTable:
    """Return the rows of one server in a mirror of several."""

    def read() -> pa.Table:
        rows = mirror.read()
        return rows.filter(pc.equal(rows.column(SERVER), server)).drop_columns([SERVER])

    return ReadTable(lambda: mirror.position().of_server(server), read)


def current_versions(history: VersionTable, server: str = "") -> ReadTable:
    """Return a history's current versions; with several servers, those of one server."""

    def state() -> MirrorState:
        progress = history.position().of_server(server)
        return MirrorState(progress.token, progress.ended, query=progress.query, batch=progress.batch)

    def read() -> pa.Table:
        versions = of_server(server, history.rows()) if server else history.rows()
        return _table((key, version.document, version.confirmed) for key, version in versions.items())

    return ReadTable(state, read)


def snapshot_of(log: EventLog) -> ReadTable:
    """Return the snapshot at the end of a log that has no later events."""

    def state() -> MirrorState:
        token = log.position().token
        return MirrorState(token, token)

    def read() -> pa.Table:
        begun = log.position().begun
        rows = MicroBatch("", 0, log.read()).rows()
        kept = (row for row in rows if row.operationType == SNAPSHOT and row.token >= begun)
        return _table((key_of(row), row.fullDocument, row.token) for row in kept)

    return ReadTable(state, read)


def complete_copy(copy: MongoMirror) -> ReadTable:
    """Return a copy on a server; its state waits until no commit is running. Raise CollectionUnstable."""

    def state() -> MirrorState:
        clock, pause = SystemClock(), threading.Event()
        end_ms = clock.monotonic_ms() + limits.SINK_EXIT_SECONDS_MAX * 1000
        while not copy.is_complete():
            if clock.monotonic_ms() > end_ms:
                raise CollectionUnstable(f"a commit to {copy} takes too long to wait for")
            pause.wait(_POLL_S)
        return copy.position()

    return ReadTable(state, copy.read)


def at_position(table: ReadMirror, token: str) -> ReadTable:
    """Return the table of one of several collections, without events from its own position to the job's, `token`.

    Its state has the job's position; a stream of the collection can be opened after that position.
    """

    def state() -> MirrorState:
        state = table.position()
        if not state.token:
            return state
        return replace(state, token=position_after(Token(max(state.token, token))).text)

    return ReadTable(state, table.read)


def _table(rows: Iterable[tuple[str, str | None, str]]) -> pa.Table:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    return pa.table(dict(zip(("_id", "document", "token"), columns, strict=True)))
