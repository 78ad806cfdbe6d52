"""The base of the sinks that fill one table: its owner, its position, and who reads and writes the rows of a batch.

Where tasks can write the table's files, the rows of a large batch are not collected to the driver. They are first in
files in the table's folder: the tasks that read the source wrote them (`tables/staged_files.py`), if the job does
nothing else with the rows, otherwise tasks of the sink (`stage`). The driver applies all other batches.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headrace.clock import SystemClock
from headrace.spark.masks.mask import Mask
from headrace.spark.rows.events import SERVER, arrow_schema
from headrace.spark.sinks.contract import BatchReport, MicroBatch
from headrace.spark.tables.progress import TableOwner, check_owner
from headrace.spark.tables.staged_files import (
    Encode,
    Slots,
    StagedBatch,
    merged_batches,
    row_groups,
    staged_batches,
    staged_prefix,
    without_seen_files,
    write_encoded,
    write_staged,
)
from headrace.spark.tables.table_location import TableLocation

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class TableSink:
    """See `contract.Sink`, and `contract.FrameSink` if tasks can write the table's files."""

    def __init__(self, table: Any) -> None:
        self.table: Any = table
        self.owner: TableOwner | None = None
        self.omit: Mask | None = None
        """The fields that the table omits."""
        self.staged_by_source = False
        """Whether the source was told to stage rows into the table's folder."""

    def position(self) -> Any:
        """Return the last committed position."""
        return self.table.position()

    def slots(self, spark: SparkSession) -> Slots | None:
        """Return the slots that divide staged rows; None if the rows need not be divided."""
        return None

    def apply(self, batch: MicroBatch) -> BatchReport | None:
        """See `contract.Sink`."""
        return self._apply(batch, self._before())

    def apply_frame(self, frame: DataFrame, query: str, number: int) -> BatchReport | None:
        """Apply the frame as `apply` does, but let tasks write the rows of a large batch. Raise FilesNotShared."""
        before = self._before()
        if before.has(query, number):
            return None
        rows = self._read(frame, staged_prefix(query, number), before.token)
        if isinstance(rows, StagedBatch):
            return self._apply_staged(frame, rows, before, query, number)
        return self._apply(MicroBatch(query, number, rows), before)

    def _apply(self, batch: MicroBatch, before: Any) -> BatchReport | None:
        """Apply the batch to the table at the position `before`."""
        raise NotImplementedError

    def _apply_staged(
        self, frame: DataFrame, staged: StagedBatch, before: Any, query: str, number: int
    ) -> BatchReport | None:
        """Apply a batch whose rows are in files."""
        raise NotImplementedError

    def _collects(self, schema: pa.Schema) -> bool:
        """Whether the driver collects rows with these columns, unless the source has staged them."""
        raise NotImplementedError

    def _read(self, frame: DataFrame, prefix: str, token: str) -> pa.Table | StagedBatch:
        """Return the frame's rows, or the files that have them, without events up to `token`."""
        location = self.table.location
        if self.staged_by_source:
            location.create()
            rows = frame.toArrow()
            if (batches := staged_batches(rows, prefix)) is None:
                return rows
            if self.slots(frame.sparkSession):
                return merged_batches(batches, location, exact=False)
            staged = merged_batches(batches, location)
            return without_seen_files(staged, location, prefix, arrow_schema(frame.schema), token)
        schema = arrow_schema(frame.schema)
        if SERVER in schema.names or self._collects(schema) or were_fetched(frame):
            return frame.toArrow()
        slots = self.slots(frame.sparkSession)
        return stage(frame, location, prefix, schema, "" if slots else token, slots)

    def _before(self) -> Any:
        """Return the table's position. Raise NotOurTable if the table belongs to another sink."""
        before = self.position()
        check_owner(before.owner, self.owner, self.table)
        return before

    def _after(self, position: Any, query: str, number: int) -> Any:
        """Return the position with its batch and, if it is known, the table's owner."""
        owner = self.owner.text() if self.owner else position.owner
        return replace(position, query=query, batch=number, owner=owner)

    @staticmethod
    def _report(number: int, staged: StagedBatch, event_count: int, token: str, rest_count: int) -> BatchReport:
        """Return the report on a batch of staged rows, which has just been committed."""
        return BatchReport(
            number, staged.seen_count, event_count, token, staged.stats.first_event_ms, SystemClock().now_ms(),
            rest_count,
        )  # fmt: skip


_LOG: Final = logging.getLogger(__name__)
_SOURCE: Final = "DataSourceRDD"
_DEPTH_MAX: Final = 8


def were_fetched(frame: DataFrame) -> bool:
    """Whether all rows of a micro-batch's frame were read while the batch was planned (`source/readers.py`).

    Collecting such rows starts no Python worker; writing them in tasks would. The check uses internal names of Spark.
    If these differ, the answer is no, and tasks write the batch.
    """
    from py4j.protocol import Py4JError

    try:
        rdd: Any = frame._jdf.queryExecution().logical().rdd()
        for _ in range(_DEPTH_MAX):
            if rdd.getClass().getSimpleName() == _SOURCE:
                partitions = rdd.partitions()
                return len(partitions) == 1 and bool(partitions[0].inputPartition().get().blockId().isDefined())
            parents = rdd.dependencies()
            if parents.size() != 1:
                return False
            rdd = parents.head().rdd()
    except (AttributeError, Py4JError, TypeError) as error:
        _LOG.debug("Spark does not say whether a batch was fetched: %s", error)
    return False


Answer = TypeVar("Answer")


def stage(
    frame: DataFrame, location: TableLocation, prefix: str, schema: pa.Schema, token: str, slots: Slots | None = None
) -> StagedBatch:
    """Write the frame's rows, without events up to `token`, to files whose names begin with `prefix`, in `slots`.

    Each task writes one file. A task that is retried or runs twice (speculation) writes another one. Spark returns only
    the results of the attempts that it accepts, and only their files are committed. Raise FilesNotShared if the driver
    does not see the files that workers wrote.
    """
    location.create()

    def answers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        staged = write_staged(batches, location, prefix, schema, token, slots)
        yield pa.record_batch({"staged": pa.array([pickle.dumps(staged)], pa.binary())})

    staged = [pickle.loads(answer.staged) for answer in frame.mapInArrow(answers, "staged BINARY").collect()]
    return merged_batches(staged, location, exact=slots is None)


def stage_encoded(
    spark: SparkSession, staged: StagedBatch, location: TableLocation, prefix: str, encode: Encode
) -> StagedBatch | None:
    """Let tasks write the rows of the staged files to new files, as `encode` returns them. Return None if columns are
    missing. The caller removes the staged files and, after None, the new ones."""
    groups = row_groups(staged.files, location)
    count = min(slot_count(spark), len(groups))

    def write(number: int) -> StagedBatch | None:
        own = groups[len(groups) * number // count : len(groups) * (number + 1) // count]
        return write_encoded(own, location, prefix, encode)

    done = [each for each in run_tasks(spark, count, write) if each]
    if len(done) < count:
        return None
    files = tuple(file for each in done for file in each.files)
    return replace(staged, files=files, rest_count=sum(each.rest_count for each in done))


def run_tasks(spark: SparkSession, count: int, run: Callable[[int], Answer]) -> list[Answer]:
    """Return what `run` returns for each number below `count`, each in a task of its own."""

    def answers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield pa.record_batch({"answer": pa.array([pickle.dumps(run(number))], pa.binary())})

    tasks = spark.range(0, count, 1, count).mapInArrow(answers, "answer BINARY")
    return [pickle.loads(each.answer) for each in tasks.collect()]


def slot_count(spark: Any) -> int:
    """Return how many tasks share a batch: as many as the cluster runs at once, up to a limit."""
    from headrace import limits

    context = getattr(spark, "sparkContext", None)
    return min(context.defaultParallelism, limits.FOLD_TASK_COUNT_MAX) if context else limits.FOLD_TASK_COUNT_MIN
