"""The base of the append-only sinks: one commit appends the new rows of a batch to a table of events.

The table has all columns of the source. A drop, a rename and an invalidate are rows like any other. With the policy
`fail` they stop the job instead; `keep` and `follow` are the same here.

After a new snapshot (a lost checkpoint, or a collection created again) a row `snapshotBegin` marks a gap: the log lacks
the events between this row and the event before it.

If tasks can write the log's files (`SharedLog`), rows are not collected to the driver. Each task writes a file and
returns its statistics; the driver commits the files unchanged, with the progress. If the job does nothing else with the
rows, the tasks that read the rows write the files (`tables/staged_rows.py`). The driver collects and checks only three
kinds of batch: a small one whose rows Spark already has, one of several servers, and one with rows that the log may
already have (a repeated snapshot).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headrace.clock import SystemClock
from headrace.spark.masks.mask import Mask
from headrace.spark.rows.arrow_schema import arrow_schema
from headrace.spark.rows.events import SERVER
from headrace.spark.sinks.contract import BatchReport, MicroBatch, take_rows
from headrace.spark.sinks.fetched_rows import were_fetched
from headrace.spark.sinks.stage_files import stage, stage_converted
from headrace.spark.tables.batch_stats import BatchStats, batch_stats, progress_after, without_seen_events
from headrace.spark.tables.drop_policy import CollectionGone, checked_policy
from headrace.spark.tables.event_log import EventLog, NotingLog, SharedLog
from headrace.spark.tables.progress import Progress, Sieve, may_be_present
from headrace.spark.tables.staged_files import (
    StagedBatch,
    merged_batches,
    read_staged,
    remove_files,
    staged_prefix,
    without_seen_files,
)
from headrace.spark.tables.staged_rows import staged_batches
from headrace.spark.tables.table_owner import TableOwner, check_owner
from headrace.spark.tables.typed.table_schema import rest_count_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


WRITERS: Final = ("tasks", "driver")
"""The writers of the files: the tasks that have the rows, or the driver, for a path that only the driver sees."""


def checked_writers(writers: str) -> str:
    """Return `writers`; raise ValueError if it is not in `WRITERS`."""
    if writers not in WRITERS:
        raise ValueError(f"the writers of a sink are one of {', '.join(WRITERS)}, not {writers!r}")
    return writers


class LogSink:
    """See `contract.Sink`. `shared`: tasks write the files if the log supports that, otherwise the driver does."""

    def __init__(self, log: EventLog, policy: str = "follow", *, shared: bool = True) -> None:
        self.log = log
        self.takes_frames = shared and isinstance(log, SharedLog)
        self._policy = checked_policy(policy)
        self._swept = False
        self.source = ""
        """The fingerprint of the rows' stream (`mongodb/stream_fingerprint.py`), if the caller knows it."""
        self.owner: TableOwner | None = None
        self.staged_by_source = False
        """Whether the source stages rows into the log's folder."""
        self.omit: Mask | None = None
        """The fields that the table omits; with any, the driver collects the rows."""

    def position(self) -> Progress:
        return self.log.position()

    def apply(self, batch: MicroBatch) -> BatchReport | None:
        return self._apply(batch, self._before())

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
        after = self._named(replace(after, query=batch.query, batch=batch.number))
        rest_before = rest_count_of(self.log)
        self.log.append(new, after)
        return batch.report(count, after.token, rest_count_of(self.log) - rest_before)

    def apply_frame(self, frame: DataFrame, query: str, number: int) -> BatchReport | None:
        """Apply the frame as `apply` does, but let tasks write the rows; the driver commits the files. Raise
        FilesNotShared."""
        assert isinstance(self.log, SharedLog)
        before = self._before()
        if before.has(query, number):
            return None
        location, prefix = self.log.location, staged_prefix(query, number)
        if self.staged_by_source:
            location.create()
            table = frame.toArrow()
            batches = staged_batches(table, prefix)
            if batches is None:
                return self._apply(MicroBatch(query, number, table), before)
            schema, staged = arrow_schema(frame.schema), merged_batches(batches, location)
            staged = without_seen_files(staged, location, prefix, schema, before.token)
            return self._commit_staged(frame.sparkSession, staged, schema, before, query, number)
        schema = arrow_schema(frame.schema)
        if SERVER in schema.names or self.omit or not self.log.takes(schema) or were_fetched(frame):
            return self._apply(MicroBatch(query, number, frame.toArrow()), before)
        staged = stage(frame, location, prefix, schema, before.token)
        return self._commit_staged(frame.sparkSession, staged, schema, before, query, number)

    def _commit_staged(
        self, spark: SparkSession, staged: StagedBatch, schema: pa.Schema, before: Progress, query: str, number: int
    ) -> BatchReport | None:
        """Commit the files, for a typed log converted by tasks; or only their new rows, if the log may have some of the
        rows or needs columns for them."""
        assert isinstance(self.log, SharedLog)
        location, prefix, given = self.log.location, staged_prefix(query, number), staged.files
        after = progress_after(before, staged.stats)
        if given:
            fits = after is not None and self.log.takes(schema)
            stored = self._converted(spark, staged, prefix) if fits else None
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
        after = self._named(replace(after, query=query, batch=number))
        if staged.seen_count:
            self.log.append_files(staged.files, schema, after)
        if not self._swept or staged.files != given:
            # Remove files of a crashed attempt: the first batch that the sink applies in the next run is the same
            # batch.
            remove_files(location, prefix, but=staged.files)
            self._swept = True
        if not staged.seen_count:
            return None
        stats = staged.stats
        return BatchReport(
            number, staged.seen_count, stats.event_count, after.token, stats.first_event_ms, SystemClock().now_ms(),
            staged.rest_count,
        )  # fmt: skip

    def _converted(self, spark: SparkSession, staged: StagedBatch, prefix: str) -> StagedBatch | None:
        """Return the files with the rows as the log stores them; None if columns are missing."""
        assert isinstance(self.log, SharedLog)
        convert = self.log.converter()
        return stage_converted(spark, staged, self.log.location, prefix, convert) if convert else staged

    def note(self, query: str, number: int, token: str) -> None:
        """Record after an empty batch that every event up to `token` is applied; a batch with rows has recorded it
        already."""
        before = self._before()
        further = before.token and token > before.token and not before.has(query, number)
        if further and isinstance(self.log, NotingLog):
            self.log.note(replace(before, token=token, query=query, batch=number))

    def _before(self) -> Progress:
        """Return the progress of the table. Raise NotOurTable if it belongs to another sink."""
        before = self.log.position()
        check_owner(before.owner, self.owner, self.log)
        return before

    def _named(self, progress: Progress) -> Progress:
        """Return the progress with the stream and the owner, if they are known."""
        owner = self.owner.text() if self.owner else progress.owner
        return replace(progress, source=self.source or progress.source, owner=owner)

    def _sieved(self, batch: MicroBatch, before: Progress) -> tuple[pa.Table, Progress, int]:
        """Check the rows one by one. Return the new rows, the progress after them, and how many of them are events."""
        rows = batch.rows()
        present = self.log.snapshot_rows(before.oldest_snapshot_begin()) if may_be_present(rows, before) else ()
        sieve = Sieve(before, present)
        new = [number for number, row in enumerate(rows) if sieve.is_new(row)]
        return take_rows(batch.table, new), sieve.progress, sieve.event_count

    def _check(self, stats: BatchStats) -> None:
        if stats.invalidated and self._policy == "fail":
            raise CollectionGone(stats.invalidated.description)
