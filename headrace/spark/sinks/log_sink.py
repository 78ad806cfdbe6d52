"""The append-only sinks `changes`, `parquet` and `documents`: one commit appends the new rows of a batch to a table.

The table has all columns of the source. A drop, a rename and an invalidate are rows like any other. With the policy
`fail` they stop the job instead; `keep` and `follow` are the same here.

After a new snapshot (a lost checkpoint, or a collection created again) a row `snapshotBegin` marks a gap: the log lacks
the events between this row and the event before it.

Tasks write the files (`table_sink.py`) if the log has a location for them; the driver commits the files unchanged,
with the progress. It collects and checks only three kinds of batch: a small one whose rows Spark already has, one of
several servers, and one with rows that the log may already have (a repeated snapshot).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.rows.events import SERVER, arrow_schema
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.key_identity import key_identity
from headrace.spark.sinks.contract import BatchReport, MicroBatch, take_rows
from headrace.spark.sinks.table_sink import TableSink, stage_encoded
from headrace.spark.tables.event_log import DeltaLog, EventLog, NewRows, ParquetLog
from headrace.spark.tables.progress import CollectionGone, Progress, Sieve, checked_policy, may_be_present
from headrace.spark.tables.staged_files import (
    BatchStats,
    StagedBatch,
    batch_stats,
    progress_after,
    read_staged,
    remove_files,
    staged_prefix,
    without_seen_events,
)
from headrace.spark.tables.typed.table_schema import TypedOptions, rest_count_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


WRITERS: Final = ("tasks", "driver")
"""The writers of the files: the tasks that have the rows, or the driver, for a path that only the driver sees."""


def checked_writers(writers: str) -> str:
    """Return `writers`; raise ValueError if it is not in `WRITERS`."""
    if writers not in WRITERS:
        raise ValueError(f"the writers of a sink are one of {', '.join(WRITERS)}, not {writers!r}")
    return writers


class LogSink(TableSink):
    """See `TableSink`. `shared`: tasks write the files if the log supports that, otherwise the driver does."""

    def __init__(self, log: EventLog, policy: str = "follow", *, shared: bool = True) -> None:
        super().__init__(log)
        self.takes_frames = shared and log.location is not None
        self._policy = checked_policy(policy)
        self._swept = False
        self.source = ""
        """The fingerprint of the rows' stream (`mongodb/source_options.py`), if the caller knows it."""

    def _apply(self, batch: MicroBatch, before: Progress) -> BatchReport | None:
        if before.has(batch.query, batch.number) or not batch.table.num_rows:
            return None
        batch = batch.masked(self.omit)
        of_servers = SERVER in batch.table.column_names
        rows = (batch.table if of_servers else without_seen_events(batch.table, before.token)).sort_by("token")
        stats = batch_stats(rows)
        new, after, count = rows, None if of_servers else progress_after(before, stats), stats.event_count
        if after is None:
            new, after, count = self._sieved(replace(batch, table=rows), before)
            stats = batch_stats(new)
        self._check(stats)
        after = self._after(after, batch.query, batch.number)
        rest_before = rest_count_of(self.table)
        self.table.commit(NewRows(after, new))
        return batch.report(count, after.token, rest_count_of(self.table) - rest_before)

    def _collects(self, schema: pa.Schema) -> bool:
        return bool(self.omit) or not self.table.takes(schema)

    def _apply_staged(
        self, frame: DataFrame, staged: StagedBatch, before: Progress, query: str, number: int
    ) -> BatchReport | None:
        """Commit the files, for a typed log encoded by tasks; or only their new rows, if the log may have some of the
        rows or needs columns for them."""
        schema = arrow_schema(frame.schema)
        location, prefix, given = self.table.location, staged_prefix(query, number), staged.files
        after = progress_after(before, staged.stats)
        if given:
            fits = after is not None and self.table.takes(schema)
            stored = self._encoded(frame.sparkSession, staged, prefix) if fits else None
            if stored is None:
                try:
                    report = self._apply(MicroBatch(query, number, read_staged(given, location)), before)
                    return report and replace(report, row_count=staged.seen_count)
                finally:
                    remove_files(location, prefix)
            staged = stored
        assert after is not None, "a batch without rows changes nothing"
        if self._policy == "fail" and staged.stats.invalidated:
            remove_files(location, prefix)
        self._check(staged.stats)
        after = self._after(after, query, number)
        if staged.seen_count:
            self.table.append_files(staged.files, schema, after)
        if not self._swept or staged.files != given:
            # Remove files of a crashed attempt: the first batch that the sink applies in the next run is the same
            # batch.
            remove_files(location, prefix, but=staged.files)
            self._swept = True
        if not staged.seen_count:
            return None
        return self._report(number, staged, staged.stats.event_count, after.token, staged.rest_count)

    def _encoded(self, spark: SparkSession, staged: StagedBatch, prefix: str) -> StagedBatch | None:
        """Return the files with the rows as the log stores them; None if columns are missing."""
        encode = self.table.encoder()
        return stage_encoded(spark, staged, self.table.location, prefix, encode) if encode else staged

    def note(self, query: str, number: int, token: str) -> None:
        """Record after an empty batch that every event up to `token` is applied; a batch with rows has recorded it
        already."""
        before = self._before()
        further = before.token and token > before.token and not before.has(query, number)
        if further:
            self.table.commit(NewRows(replace(before, token=token, query=query, batch=number), None))

    def _after(self, position: Progress, query: str, number: int) -> Progress:
        after: Progress = super()._after(position, query, number)
        return replace(after, source=self.source or after.source)

    def _sieved(self, batch: MicroBatch, before: Progress) -> tuple[pa.Table, Progress, int]:
        """Check the rows one by one. Return the new rows, the progress after them, and how many of them are events."""
        rows = batch.rows()
        present = self.table.snapshot_rows(before.oldest_snapshot_begin()) if may_be_present(rows, before) else ()
        sieve = Sieve(before, present)
        new = [number for number, row in enumerate(rows) if sieve.is_new(row)]
        return take_rows(batch.table, new), sieve.progress, sieve.event_count

    def _check(self, stats: BatchStats) -> None:
        if stats.invalidated and self._policy == "fail":
            raise CollectionGone(stats.invalidated.description)


def parquet_sink(path: str | Path, *, policy: str = "follow", writers: str = "tasks") -> LogSink:
    """Return the sink `parquet`, whose files are in `path`; its first batch creates them. For `writers` see
    `checked_writers`."""
    return LogSink(ParquetLog(path), policy, shared=checked_writers(writers) == "tasks")


def changes_sink(
    path: str | Path, *, policy: str = "follow", writers: str = "tasks", typed: TypedOptions | None = None,
    table: str = "", using: str = "",
) -> LogSink:  # fmt: skip
    """Return the sink `changes`, whose Delta table is at `path`. For `writers` see `checked_writers`.

    The table has every event once, and the first batch creates it. `ORDER BY token` gives the order in which the events
    happened. A `table` of one of Spark's catalogs, in the format `using` (`tables/catalog/`), is written by the driver;
    `path` is then empty.
    """
    if "." in table:
        from headrace.spark.session import get_session
        from headrace.spark.tables.catalog.catalog_table import CatalogLog

        return LogSink(CatalogLog(table, get_session, using), policy, shared=False)
    return LogSink(DeltaLog(path, typed), policy, shared=checked_writers(writers) == "tasks")


_DOCUMENT, _TOKEN, _WINDOW = "document", "token", "window"
_AGAIN: Final = "groups"
"""The value of `Progress.again` for a table whose groups came from more than one query."""

GroupIdentity = tuple[str, str]


def documents_sink(path: str | Path, *, table: str = "delta") -> DocumentsSink:
    """Return the sink whose `delta` or `parquet` table is at `path`; the first batch creates the table."""
    return DocumentsSink(DeltaLog(path) if table == "delta" else ParquetLog(path))


class DocumentsSink(TableSink):
    """A pipeline's output: documents of events, or groups of closed windows. The driver applies every batch.

    Rule: exactly once. The query and number identify a repeated batch. If the checkpoint was lost and a new query
    repeats earlier events, documents of events are recognized by their tokens, and groups by their window and `_id`. A
    group that is in the table stays unchanged: it was complete when it was written, and the repeated group may lack
    events that have left the oplog.
    """

    def __init__(self, log: EventLog) -> None:
        super().__init__(log)
        self._present: set[GroupIdentity] | None = None

    def _apply(self, batch: MicroBatch, before: Progress) -> BatchReport | None:
        if before.has(batch.query, batch.number) or not batch.table.num_rows:
            return None
        groups = _TOKEN not in batch.table.column_names
        new, after = self._new_groups(batch, before) if groups else _new_documents(batch.table, before)
        after = self._after(after, batch.query, batch.number)
        self.table.commit(NewRows(after, new))
        return batch.report(new.num_rows, after.token)

    def _new_groups(self, batch: MicroBatch, before: Progress) -> tuple[pa.Table, Progress]:
        if not before.again and before.query in ("", batch.query):
            return batch.table, before
        if self._present is None:
            self._present = set(map(_identity, self.table.read().to_pylist()))
        rows = [_identity(row) for row in batch.table.to_pylist()]
        new = batch.table.filter(pa.array([row not in self._present for row in rows], pa.bool_()))
        self._present.update(rows)
        return new, replace(before, again=_AGAIN)


def _new_documents(table: pa.Table, before: Progress) -> tuple[pa.Table, Progress]:
    """Return the documents of new events, sorted by token, and the progress after them."""
    new = table.filter(pc.greater(table.column(_TOKEN).cast(pa.string()), before.token)).sort_by(_TOKEN)
    return new, replace(before, token=max(before.token, pc.max(table.column(_TOKEN)).as_py()))


def _identity(row: dict[str, object]) -> GroupIdentity:
    """Return the identity of a group; a document without `_id` is identified by all its fields."""
    document = loads(str(row[_DOCUMENT]))
    return repr(row.get(_WINDOW)), key_identity(dumps(document.get("_id", document)))
