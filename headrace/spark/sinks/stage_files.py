"""Writes a batch's rows as files of a log, in Spark's tasks: each writes one file and returns statistics of it.

A task that is retried or runs twice (speculation) writes another file; only the results of the attempts that Spark
accepts are returned, and only those files are committed.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.spark.tables.slots import Slots
from headrace.spark.tables.staged_files import StagedBatch, merged_batches, write_staged
from headrace.spark.tables.table_location import TableLocation

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def schema_of(frame: DataFrame) -> pa.Schema:
    """The Arrow schema of the files that tasks write of the frame."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(frame.schema, timezone="UTC")


def stage(
    frame: DataFrame, location: TableLocation, prefix: str, schema: pa.Schema, token: str, slots: Slots | None = None
) -> StagedBatch:
    """Writes the frame's rows, without events up to `token`, to files whose names begin with `prefix`, in `slots`.

    Raises FilesNotShared if the driver does not see what workers wrote.
    """
    location.create()

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        staged = write_staged(batches, location, prefix, schema, token, slots)
        yield pa.record_batch({"staged": pa.array([pickle.dumps(staged)], pa.binary())})

    answers = frame.mapInArrow(write, "staged BINARY").collect()
    staged = [pickle.loads(answer.staged) for answer in answers]
    return merged_batches(staged, location, exact=slots is None)
