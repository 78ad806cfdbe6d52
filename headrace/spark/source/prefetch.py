"""Small batches without a worker: Spark gets their rows together with the partitions of the batch.

Starting a task for a batch of a few rows takes a third of the batch's CPU time. Spark avoids this for simple sources
(`SimpleDataSourceStreamReader`), whose rows come from the process that plans. Small batches use the same mechanism, and
others use workers: a range gives the same rows wherever it is read. The first and last rows of a snapshot also use it,
so that a job that begins with a small collection starts no worker at all.

The mechanism is internal to Spark. If it differs from that of 4.2 and 4.3, every batch goes to the workers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from pymongo.errors import PyMongoError
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headrace import limits
from headrace.spark.source.admission import HAS_ADMISSION_CONTROL
from headrace.spark.source.readers import StreamReader
from headrace.spark.stream.offsets import Offset, ServerOffset
from headrace.spark.stream.partitions import CollectionEvents, EventRange, SnapshotPieces
from headrace.spark.timetravel.snapshot import Chunk, Snapshot

if TYPE_CHECKING:
    StreamReaderBase = DataSourceStreamReader
else:
    _internal = import_module("pyspark.sql.datasource_internal")
    StreamReaderBase = getattr(_internal, "_SimpleStreamReaderWrapper", DataSourceStreamReader)

_LOG: Final = logging.getLogger(__name__)


class PrefetchingReader(StreamReader, StreamReaderBase):
    """Reads small batches of a stream where they are planned. Spark uses `simple_reader` and `getCache`."""

    is_possible: Final = HAS_ADMISSION_CONTROL and hasattr(StreamReaderBase, "getCache")
    """Whether this PySpark allows it."""
    _fetched: tuple[Offset, Offset, list[Any]] | None = None

    @property
    def simple_reader(self) -> StreamReader:
        """This reader."""
        return self

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        partitions = super().partitions(start, end)
        self._fetched = None
        undivided = self._undivided(partitions, end) if start != end else None
        if undivided:
            batches = self._read_small(undivided)
            if batches:
                self._fetched = (start, end, batches)
                return [undivided]
        return partitions

    def getCache(self, start: Offset, end: Offset) -> Iterator[Any] | None:
        """Return the rows of the batch that was just planned; None if workers must read them."""
        if self._fetched is None or self._fetched[:2] != (start, end):
            return None
        batches, self._fetched = self._fetched[2], None
        return iter(batches)

    def _undivided(self, partitions: Sequence[InputPartition], end: Offset) -> InputPartition | None:
        """Return the batch as one partition, whatever the option `partitions` says; None if workers must read it."""
        if not partitions:
            return None
        first = partitions[0]
        if isinstance(first, EventRange | CollectionEvents):
            return first.undivided() if all(isinstance(each, type(first)) for each in partitions) else None
        if self.options.several or not isinstance(first, SnapshotPieces):
            return None
        after = ServerOffset.of(end)
        chunks = [chunk for piece in after.snapshots for chunk in piece.chunks]
        small = after.snapshots and all(self._is_small(chunk, after) for chunk in chunks)
        return SnapshotPieces(after.snapshots) if small else None

    def _is_small(self, chunk: Chunk, after: ServerOffset) -> bool:
        """Whether the chunk has few documents; only the last chunk, or a chunk of a limited batch, is counted."""
        options = self.options
        rows_max = limits.PREFETCH_ROW_COUNT_MAX - 1  # without the row `snapshotBegin`
        is_last = after.reading is not None and after.reading.last
        if chunk.after and not is_last and (options.rows_max or rows_max + 1) > rows_max:
            return False
        try:
            return Snapshot(options).is_within(chunk, rows_max, limits.PREFETCH_BYTES_MAX)
        except PyMongoError as error:
            _LOG.warning("a small chunk of a snapshot could not be read where it is planned: %s", error)
            return False

    def _read_small(self, partition: InputPartition) -> list[Any]:
        """Return all rows of the partition; an empty list if they exceed the limits of prefetching."""
        batches: list[Any] = []
        rows = size = 0
        try:
            batch: Any
            for batch in self.read(partition):
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if rows > limits.PREFETCH_ROW_COUNT_MAX or size > limits.PREFETCH_BYTES_MAX:
                    return []
                batches.append(batch)
        except Exception as error:
            # A worker will fail in the same way, and Spark handles that.
            _LOG.warning("a small batch could not be read where it is planned: %s", error)
            return []
        return batches
