"""What a sink asks of Spark's frame, done in this process: the tasks run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.spark.tables.staged_files import staged_row


class LocalFrame:
    """Rows in some partitions, each of them two batches."""

    def __init__(self, rows: pa.Table, tasks: list[Any] | None = None, *, partition_count: int = 3) -> None:
        self._rows, self._tasks = rows, tasks
        self._partition_count = partition_count
        self.schema = from_arrow_schema(rows.schema)

    @property
    def sparkSession(self) -> Self:
        """The session, with a core for each partition: this object."""
        return self

    @property
    def sparkContext(self) -> SimpleNamespace:
        return SimpleNamespace(defaultParallelism=self._partition_count)

    def range(self, start: int, end: int, step: int, partitions: int) -> LocalFrame:
        assert partitions
        rows = pa.table({"id": list(range(start, end, step))})
        return LocalFrame(rows, partition_count=self._partition_count)

    def mapInArrow(self, task: Callable[..., Any], _: str) -> LocalFrame:
        count = self._partition_count
        size = self._rows.num_rows // count + 1
        slices = [self._rows.slice(start, size) for start in range(0, count * size, size)]
        tasks = [partial(task, rows.to_batches(max_chunksize=size // 2 + 1)) for rows in slices]
        return LocalFrame(self._rows, tasks, partition_count=count)

    def collect(self) -> list[SimpleNamespace]:
        assert self._tasks is not None
        batches = [batch for task in self._tasks for batch in task()]
        return [SimpleNamespace(**row) for batch in batches for row in batch.to_pylist()]

    def toArrow(self) -> pa.Table:
        return self._rows


class SourceFrame(LocalFrame):
    """The same rows as a source gives them whose workers wrote them into the folder of a log."""

    def __init__(self, rows: pa.Table, folder: str, prefix: str, slots: str = "") -> None:
        super().__init__(rows)
        self._folder, self._prefix, self._slots = folder, prefix, slots

    def toArrow(self) -> pa.Table:
        def write(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield staged_row(batches, self._folder, self._prefix, self._rows.schema, self._slots)

        tasks = self.mapInArrow(write, "")._tasks
        return pa.Table.from_batches([batch for task in tasks or () for batch in task()])
