"""Statistics of a batch that show, without checking each row, that all its rows are new to a log.

Most batches are new: events after the last one, or a snapshot that is read for the first time. The progress then
follows from the statistics, which tasks compute and the driver merges. For any other batch `progress_after` returns
None, and `progress.Sieve` checks each row. The sieve has the whole rule; this module has the part that needs no order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.rows.events import INVALIDATING, SNAPSHOT_BEGIN, SNAPSHOT_END, SNAPSHOT_KINDS, Row
from headrace.spark.tables.progress import Progress, Sieve


@dataclass(frozen=True, slots=True)
class InvalidatingEvent:
    """An event after which the collection is gone or replaced."""

    token: str
    description: str


@dataclass(frozen=True, slots=True)
class BatchStats:
    """`first` and `last` bound the tokens of the events. `distinct`: no two events are known to have the same token.

    `begins` and `ends` are the tokens of the few rows around snapshots.
    """

    row_count: int = 0
    event_count: int = 0
    first: str = ""
    last: str = ""
    distinct: bool = True
    begins: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    invalidated: InvalidatingEvent | None = None
    first_event_ms: int | None = None


def without_seen_events(rows: pa.Table, token: str) -> pa.Table:
    """Return the rows without the events up to `token`: a log at that token has them."""
    old = pc.less_equal(rows["token"].cast(pa.string()), token)
    if not pc.any(old).as_py():
        return rows
    return rows.filter(pc.or_(pc.invert(old), _is_snapshot(rows)))


def batch_stats(rows: pa.Table) -> BatchStats:
    """Return the statistics of the rows, which may be in any order."""
    if not rows.num_rows:
        return BatchStats()
    snapshots = _is_snapshot(rows)
    around = rows.filter(snapshots) if pc.any(snapshots).as_py() else rows.slice(0, 0)
    tokens = rows["token"] if not around.num_rows else rows.filter(pc.invert(snapshots))["token"]
    bounds = pc.min_max(tokens).as_py()
    return BatchStats(
        row_count=rows.num_rows,
        event_count=len(tokens),
        first=bounds["min"] or "",
        last=bounds["max"] or "",
        distinct=_distinct(tokens),
        begins=_tokens_of(around, SNAPSHOT_BEGIN),
        ends=_tokens_of(around, SNAPSHOT_END),
        invalidated=_first_invalidating(rows),
        first_event_ms=_first_ms(rows),
    )


def merged_stats(all_stats: Iterable[BatchStats]) -> BatchStats:
    """Return the statistics of all rows together. Where ranges of events overlap, `distinct` is False."""
    each = [stats for stats in all_stats if stats.row_count]
    events = sorted((stats for stats in each if stats.event_count), key=lambda stats: stats.first)
    apart = all(before.last < progress_after.first for before, progress_after in pairwise(events))
    return BatchStats(
        row_count=sum(stats.row_count for stats in each),
        event_count=sum(stats.event_count for stats in each),
        first=min((stats.first for stats in events), default=""),
        last=max((stats.last for stats in events), default=""),
        distinct=apart and all(stats.distinct for stats in events),
        begins=tuple(token for stats in each for token in stats.begins),
        ends=tuple(token for stats in each for token in stats.ends),
        invalidated=min(
            (stats.invalidated for stats in each if stats.invalidated),
            key=lambda invalidated: invalidated.token,
            default=None,
        ),
        first_event_ms=min((ms for stats in each if (ms := stats.first_event_ms) is not None), default=None),
    )


def progress_after(progress: Progress, stats: BatchStats) -> Progress | None:
    """Return the progress after the rows if all of them are new; None if the statistics do not show that.

    The result is the sieve's: no snapshot repeats, and each begins later than the last. Return None if an event shares
    its token with the begin or end of a snapshot, because then their order matters.
    """
    if not stats.row_count:
        return progress
    begins, ends = set(stats.begins), set(stats.ends)
    clear = not progress.again and len(begins) == len(stats.begins) and not begins & ends
    if not clear or any(token <= progress.begun for token in begins):
        return None
    if stats.event_count and (not stats.distinct or stats.first <= progress.token):
        return None
    # Whether an event with the token of a beginning is new depends on their order.
    if stats.event_count and any(stats.first <= token <= stats.last for token in begins):
        return None
    sieve = Sieve(progress)
    for token, kind in sorted(
        [(token, SNAPSHOT_BEGIN) for token in begins] + [(token, SNAPSHOT_END) for token in ends]
    ):
        sieve.is_new(Row(token, operationType=kind))
    return replace(sieve.progress, token=max(sieve.progress.token, stats.last))


def _is_snapshot(rows: pa.Table) -> pa.ChunkedArray:
    if "operationType" not in rows.column_names:
        return pa.chunked_array([pa.array([False] * rows.num_rows, pa.bool_())])
    return pc.is_in(rows["operationType"], pa.array(SNAPSHOT_KINDS, rows["operationType"].type))


def _distinct(tokens: pa.ChunkedArray) -> bool:
    before, behind = tokens.slice(0, max(len(tokens) - 1, 0)), tokens.slice(1)
    rising = pc.all(pc.less(before, behind), min_count=0).as_py()
    return bool(rising) or bool(pc.count_distinct(tokens).as_py() == len(tokens))


def _tokens_of(rows: pa.Table, kind: str) -> tuple[str, ...]:
    return tuple(rows.filter(pc.equal(rows["operationType"], kind))["token"].to_pylist()) if rows.num_rows else ()


def _first_invalidating(rows: pa.Table) -> InvalidatingEvent | None:
    if "operationType" not in rows.column_names:
        return None
    kinds = rows["operationType"]
    invalidating = pc.is_in(kinds, pa.array(sorted(INVALIDATING), kinds.type))
    if not pc.any(invalidating).as_py():
        return None
    first = rows.filter(invalidating).sort_by("token").slice(0, 1).to_pylist()[0]
    name = f"{first.get('database')}.{first.get('collection')}"
    return InvalidatingEvent(first["token"], f"{first['operationType']} of {name} at {first['token']}")


def _first_ms(rows: pa.Table) -> int | None:
    if "wallTime" not in rows.column_names:
        return None
    moment = pc.min(rows["wallTime"]).as_py()
    return None if moment is None else round(moment.timestamp() * 1000)
