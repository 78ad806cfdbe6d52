"""Small batches without a worker: their rows go to Spark together with the plan of the batch.

Handing a batch of a few rows to a worker is a third of its CPU time. Spark has a way around it for simple sources
(`SimpleDataSourceStreamReader`), whose rows come from the process that plans; this takes that way for a batch that is
small, and the usual one for any other: the rows of a range are the same, wherever they are read.

What that way is belongs to Spark alone; where it is not as it is in 4.2 and 4.3, every batch goes to the workers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headrace.spark.source.admission import HAS_ADMISSION_CONTROL, AdmissionControl
from headrace.spark.stream.partitions import EventRange

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

    StreamReaderBase = DataSourceStreamReader
else:
    _internal = import_module("pyspark.sql.datasource_internal")
    StreamReaderBase = getattr(_internal, "_SimpleStreamReaderWrapper", DataSourceStreamReader)

ROWS_MAX: Final = 1000
BYTES_MAX: Final = 4 << 20
_LOG: Final = logging.getLogger(__name__)

Offset = dict[str, Any]


def prefetching(reader: AdmissionControl) -> DataSourceStreamReader:
    """The same reader, whose small batches need no worker."""
    return PrefetchingReader(reader) if HAS_ADMISSION_CONTROL and hasattr(StreamReaderBase, "getCache") else reader


class PrefetchingReader(StreamReaderBase):
    """Spark asks the wrapped reader (`simple_reader` is its name for it), and `getCache` for rows that are there."""

    def __init__(self, reader: AdmissionControl) -> None:
        self.simple_reader = reader
        self._fetched: tuple[Offset, Offset, list[Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"simple_reader": self.simple_reader, "_fetched": None}

    def initialOffset(self) -> Offset:
        return self.simple_reader.initialOffset()

    def getDefaultReadLimit(self) -> ReadLimit:
        return self.simple_reader.getDefaultReadLimit()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        return self.simple_reader.latestOffset(start, limit)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        partitions = self.simple_reader.partitions(start, end)
        self._fetched = None
        if start != end and partitions and isinstance(partitions[0], EventRange):
            # What is small comes whole, into how many parts a batch is to be cut.
            whole = replace(partitions[0], slice=0, slices=1)
            batches = self._small(whole)
            if batches:
                self._fetched = (start, end, batches)
                return [whole]
        return partitions

    def getCache(self, start: Offset, end: Offset) -> Iterator[Any] | None:
        """The rows of the batch that was just planned, if they are there."""
        if self._fetched is None or self._fetched[:2] != (start, end):
            return None
        batches, self._fetched = self._fetched[2], None
        return iter(batches)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self.simple_reader.read(partition)

    def commit(self, end: Offset) -> None:
        self.simple_reader.commit(end)

    def stop(self) -> None:
        self.simple_reader.stop()

    def _small(self, part: InputPartition) -> list[Any]:
        """All rows of the part; none when they are more than is small."""
        found: list[Any] = []
        rows = size = 0
        try:
            batch: Any
            for batch in self.simple_reader.read(part):
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if rows > ROWS_MAX or size > BYTES_MAX:
                    return []
                found.append(batch)
        except Exception as error:
            # A worker comes to the same, and Spark makes of it what it makes of a worker's failures.
            _LOG.warning("a small batch could not be read where it is planned: %s", error)
            return []
        return found
