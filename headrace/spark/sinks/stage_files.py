"""Writes a batch's rows as files of a log, in Spark's tasks: each task writes one file and returns its statistics.

A task that is retried or runs twice (speculation) writes another file. Spark returns only the results of the attempts
that it accepts, and only the files of these attempts are committed.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from headrace.spark.tables.slots import Slots
from headrace.spark.tables.staged_files import ColumnsNeeded, Convert, StagedBatch, merged_batches, write_staged
from headrace.spark.tables.table_location import TableLocation

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def stage(
    frame: DataFrame, location: TableLocation, prefix: str, schema: pa.Schema, token: str, slots: Slots | None = None
) -> StagedBatch:
    """Write the frame's rows, without events up to `token`, to files whose names begin with `prefix`, in `slots`.

    Raise FilesNotShared if the driver does not see the files that workers wrote.
    """
    write = partial(write_staged, location=location, prefix=prefix, schema=schema, token=token, slots=slots)
    staged = _written(frame, location, write)
    return merged_batches([each for each in staged if each], location, exact=slots is None)


def stage_converted(
    frame: DataFrame, location: TableLocation, prefix: str, schema: pa.Schema, token: str, convert: Convert
) -> StagedBatch | None:
    """Stage the rows that `convert` returns. Return None (perhaps after writing files) if columns are missing."""

    def write(batches: Iterator[pa.RecordBatch]) -> StagedBatch | None:
        try:
            return write_staged(batches, location, prefix, schema, token, convert=convert)
        except ColumnsNeeded:
            return None

    staged = _written(frame, location, write)
    done = [each for each in staged if each]
    return merged_batches(done, location) if len(done) == len(staged) else None


def _written(
    frame: DataFrame, location: TableLocation, write: Callable[[Iterator[pa.RecordBatch]], StagedBatch | None]
) -> list[StagedBatch | None]:
    """Return the result of `write` in each task."""
    location.create()

    def answers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        yield pa.record_batch({"staged": pa.array([pickle.dumps(write(batches))], pa.binary())})

    return [pickle.loads(answer.staged) for answer in frame.mapInArrow(answers, "staged BINARY").collect()]
