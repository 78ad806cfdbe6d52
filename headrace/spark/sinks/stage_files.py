"""Writes a batch's rows as files of a log, in Spark's tasks: each task writes one file and returns its statistics.

A task that is retried or runs twice (speculation) writes another file. Spark returns only the results of the attempts
that it accepts, and only the files of these attempts are committed.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.spark.tables.slots import Slots
from headrace.spark.tables.staged_files import (
    Encode,
    StagedBatch,
    merged_batches,
    row_groups,
    write_encoded,
    write_staged,
)
from headrace.spark.tables.table_location import TableLocation

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Answer = TypeVar("Answer")


def stage(
    frame: DataFrame, location: TableLocation, prefix: str, schema: pa.Schema, token: str, slots: Slots | None = None
) -> StagedBatch:
    """Write the frame's rows, without events up to `token`, to files whose names begin with `prefix`, in `slots`.

    Raise FilesNotShared if the driver does not see the files that workers wrote.
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
