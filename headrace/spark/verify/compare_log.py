"""Checks that a log of events (`changes`, `parquet`) has every event of its range once, as the server reports them now.

Only events that are still in the server's oplog can be compared. So the range goes from the log's last snapshot, or its
first event, to the log's position. With several servers, the events of each are compared separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.mongodb.mongodb_stream import MongoDBStream, position_before
from headrace.spark.mongodb.source_options import SourceOptions, server_name
from headrace.spark.rows.events import SERVER, SNAPSHOT_KINDS
from headrace.spark.rows.tokens import Token
from headrace.spark.tables.event_log import EventLog
from headrace.spark.tables.progress import Progress

Document = dict[str, Any]
Counted = Callable[[int, int], object]
"""Called with the number of documents or events read so far, and the number of rows in the table."""


def ignored(done: int, total: int) -> None:
    """Do nothing: the `Counted` of a caller that needs no counts."""


@dataclass(frozen=True, slots=True)
class LogComparison:
    """Counts of both sides in the range, and the tokens that the log lacks, has in addition, or has twice.

    `other_count` counts rows that are not compared because they are outside the range: rows of a snapshot, and rows
    before it.
    """

    event_count: int
    row_count: int
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    duplicates: tuple[str, ...] = ()
    other_count: int = 0
    compared: bool = True
    """False if the range is empty: the log has only the beginning of a snapshot."""

    @property
    def equal(self) -> bool:
        """Whether the log has each event exactly once."""
        return not (self.missing or self.extra or self.duplicates)

    def __str__(self) -> str:
        counts = f"{self.row_count} rows of events, {self.event_count} events"
        kinds = (("missing", self.missing), ("extra", self.extra), ("twice", self.duplicates))
        others = [f"{self.other_count} rows of a snapshot or before it not compared"] if self.other_count else []
        return "; ".join(
            [counts, *others, *(f"{len(tokens)} {name}, first {tokens[0]}" for name, tokens in kinds if tokens)]
        )


def compare_log(log: EventLog, options: SourceOptions, counted: Counted = ignored) -> LogComparison:
    """Compare the range on both sides. Raise PositionLost if the server no longer has all of it."""
    progress, table = log.position(), log.read()
    if not options.others:
        return _compared(table, progress, options, progress.removed, counted)
    named = [(server_name(one.uri), one) for one in options.servers]
    each = [
        _compared(table.filter(pc.equal(table[SERVER], name)), progress.of_server(name), one, progress.removed, counted)
        for name, one in named
        if progress.of_server(name).token
    ]
    return LogComparison(
        sum(comparison.event_count for comparison in each),
        sum(comparison.row_count for comparison in each),
        tuple(token for comparison in each for token in comparison.missing),
        tuple(token for comparison in each for token in comparison.extra),
        tuple(token for comparison in each for token in comparison.duplicates),
        sum(comparison.other_count for comparison in each),
        any(comparison.compared for comparison in each),
    )


def _compared(
    table: pa.Table, progress: Progress, options: SourceOptions, removed: str, counted: Counted
) -> LogComparison:
    """Compare one server; rows before `removed` have left the log. Tokens are compared in masked form."""
    masked = options.mask.token if options.mask else str
    kinds, tokens = (column.to_pylist() for column in table.select(["operationType", "token"]).columns)
    events = sorted(masked(token) for kind, token in zip(kinds, tokens, strict=True) if kind not in SNAPSHOT_KINDS)
    start = max(progress.begun or (events[0] if events else progress.token), removed)
    row_tokens = [token for token in events if token > start]
    # The log of one of several collections has only events of that collection.
    of_collection = bool(options.collections)
    mongodb, last = MongoDBStream(options), Token(progress.token)
    end = mongodb.end_at(last.time) if last.is_masked else last
    server_tokens = [
        token
        for event in _counting(mongodb.read(position_before(Token(start)), end), counted, len(row_tokens))
        if start < (token := masked(event["_id"]["_data"])) <= progress.token
        and (not of_collection or "coll" in event.get("ns", {}))
    ]
    duplicates = [after for before, after in pairwise(row_tokens) if before == after]
    missing, extra = sorted(set(server_tokens) - set(row_tokens)), sorted(set(row_tokens) - set(server_tokens))
    return LogComparison(
        len(server_tokens), len(row_tokens), tuple(missing), tuple(extra), tuple(duplicates),
        len(tokens) - len(row_tokens), start < progress.token or bool(events),
    )  # fmt: skip


def _counting(events: Iterable[Document], counted: Counted, total: int) -> Iterator[Document]:
    for number, event in enumerate(events, 1):
        counted(number, total)
        yield event
