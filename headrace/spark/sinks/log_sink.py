"""The base of the append-only sinks: the new rows of a batch go to the end of a table of events, in one commit.

The columns are the source's own, all of them. A drop, a rename and an invalidate are rows like any other: they are
what happened. With the policy `fail` they stop the job instead; `keep` and `follow` are the same here.

After a new snapshot (a lost checkpoint, a collection of that name made again) a row `snapshotBegin` says that what
lies between it and the event before is not in the log.

If tasks can write the log's files (`SharedLog`), rows are not collected to the driver: each task writes a file and
returns statistics of it, and the driver commits the files as they are, with the progress. In a job that does nothing
more with the rows these are the tasks that read them (`tables/staged_rows.py`). The driver reads only a small batch
that Spark has already, one of several servers, or one with rows that may be in the log already (a repeated snapshot),
and checks each row.
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
    from pyspark.sql import DataFrame


WRITERS: Final = ("tasks", "driver")
"""The writer of the files: the tasks that have the rows, or the driver, for a path that only it sees."""


def checked_writers(writers: str) -> str:
    """Returns `writers`; raises ValueError if it is not in `WRITERS`."""
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
        """Which stream the rows are of (`mongodb/stream_fingerprint.py`), if the caller knows it."""
        self.owner: TableOwner | None = None
        self.staged_by_source = False
        """Whether the source stages rows into the log's folder."""
        self.omit: Mask | None = None
        """The fields that the table does not have; rows then go through the driver."""

    def position(self) -> Progress:
        return self.log.progress()

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
        """As `apply`, but tasks write the rows, and the driver commits their files. Raises FilesNotShared."""
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
            return self._commit_staged(staged, schema, before, query, number)
        schema = arrow_schema(frame.schema)
        if SERVER in schema.names or self.omit or not self.log.takes(schema) or were_fetched(frame):
            return self._apply(MicroBatch(query, number, frame.toArrow()), before)
        convert = self.log.converter()
        if convert is None:
            staged = stage(frame, location, prefix, schema, before.token)
            return self._commit_staged(staged, schema, before, query, number)
        typed = stage_converted(frame, location, prefix, schema, before.token, convert)
        if typed is None or (typed.files and progress_after(before, typed.stats) is None):
            remove_files(location, prefix)
            return self._apply(MicroBatch(query, number, frame.toArrow()), before)
        return self._commit_staged(typed, schema, before, query, number)

    def _commit_staged(
        self, staged: StagedBatch, schema: pa.Schema, before: Progress, query: str, number: int
    ) -> BatchReport | None:
        """Commits the files, or, where their rows may be in the log or do not fit it as they are, their new rows."""
        assert isinstance(self.log, SharedLog)
        location, prefix = self.log.location, staged_prefix(query, number)
        after = progress_after(before, staged.stats)
        if staged.files and (after is None or not self.log.takes(schema)):
            try:
                rows = read_staged(staged.files, location)
                report = self._apply(MicroBatch(query, number, rows), before)
                return report and replace(report, row_count=staged.seen_count)
            finally:
                remove_files(location, prefix)
        assert after is not None, "a batch without rows changes nothing"
        if self._policy == "fail" and staged.stats.invalidated:
            remove_files(location, prefix)
        self._check(staged.stats)
        after = self._named(replace(after, query=query, batch=number))
        if staged.seen_count:
            self.log.append_files(staged.files, schema, after)
        if not self._swept:
            # What a crashed attempt left: the same batch is the first that the next run's sink applies.
            remove_files(location, prefix, but=staged.files)
            self._swept = True
        if not staged.seen_count:
            return None
        stats = staged.stats
        return BatchReport(
            number, staged.seen_count, stats.event_count, after.token, stats.first_event_ms, SystemClock().now_ms(),
            staged.rest_count,
        )  # fmt: skip

    def note(self, query: str, number: int, token: str) -> None:
        """Records that every event up to `token` is in, after an empty batch; one with rows has recorded it already."""
        before = self._before()
        further = before.token and token > before.token and not before.has(query, number)
        if further and isinstance(self.log, NotingLog):
            self.log.note(replace(before, token=token, query=query, batch=number))

    def _before(self) -> Progress:
        """The progress, of a table that is this sink's. Raises NotOurTable."""
        before = self.log.progress()
        check_owner(before.owner, self.owner, self.log)
        return before

    def _named(self, progress: Progress) -> Progress:
        """The progress with the stream and the owner that are known."""
        owner = self.owner.text() if self.owner else progress.owner
        return replace(progress, source=self.source or progress.source, owner=owner)

    def _sieved(self, batch: MicroBatch, before: Progress) -> tuple[pa.Table, Progress, int]:
        """The new rows, checked one by one, the progress after them, and how many of them are events."""
        rows = batch.rows()
        present = self.log.snapshot_rows(before.oldest_snapshot_begin()) if may_be_present(rows, before) else ()
        sieve = Sieve(before, present)
        new = [number for number, row in enumerate(rows) if sieve.is_new(row)]
        return take_rows(batch.table, new), sieve.progress, sieve.event_count

    def _check(self, stats: BatchStats) -> None:
        if stats.invalidated and self._policy == "fail":
            raise CollectionGone(stats.invalidated.description)
