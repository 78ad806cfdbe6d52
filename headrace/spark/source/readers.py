"""The readers of the data source: batches and streams are planned in the driver, partitions are read on workers.

`stream/` plans offsets and partitions, and reads partitions on workers; `rows/typed.py` converts documents.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from pymongo.errors import PyMongoError
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from headrace import limits
from headrace.spark.errors import OptionError
from headrace.spark.masks.mask import masked_bson
from headrace.spark.mongodb.event_ranges import ReadPartition
from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.server_history import check_history
from headrace.spark.mongodb.source_options import BatchLimits, SourceOptions, StreamPosition
from headrace.spark.rows.events import arrow_schema
from headrace.spark.rows.not_held import MARKED, refuse_marked
from headrace.spark.rows.tokens import Token
from headrace.spark.rows.typed import Shaper
from headrace.spark.source.admission import HAS_ADMISSION_CONTROL, Admission
from headrace.spark.stream.offsets import Offset, ServerOffset
from headrace.spark.stream.partitions import (
    CollectionEvents,
    EventRange,
    MergedRanges,
    SnapshotPieces,
    key_ranges,
    merged_past_partitions,
    past_partitions,
)
from headrace.spark.stream.read_ahead import read_ahead
from headrace.spark.timetravel.archive import end_at, resolve
from headrace.spark.timetravel.snapshot import Chunk, Snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    StreamReaderBase = DataSourceStreamReader
else:
    _internal = import_module("pyspark.sql.datasource_internal")
    StreamReaderBase = getattr(_internal, "_SimpleStreamReaderWrapper", DataSourceStreamReader)


class _PartitionReader:
    """The base of both readers: reads a partition as Arrow batches of the schema."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if self.options.stage_into and TaskContext.get():
            from headrace.spark.tables.staged_files import batch_prefix, staged_row

            if prefix := batch_prefix(self._schema.names):
                schema = arrow_schema(self._schema)
                options = self.options
                row = staged_row(self._batches(partition), options.stage_into, prefix, schema, options.stage_slots)
                return iter([row])
        return self._batches(partition)

    def _batches(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadPartition)
        shaper, mask = Shaper(self._schema), self.options.mask
        for batch in partition.read(self.options, shaper.columns):
            shaped = shaper.shape(masked_bson(batch, mask) if mask else batch)
            self._refuse(shaped)
            yield shaped
        # The rows are of one history if the server still has that history now.
        check_history(self.options)

    def _refuse(self, rows: pa.RecordBatch) -> None:
        """Raise NotHeld for a mark where none is allowed; a key never allows one."""
        names = [name for name in rows.schema.names if self.options.not_held == "fail" or name not in MARKED]
        if names:
            refuse_marked(rows, self.options.database, self.options.collection, names)


class BatchReader(_PartitionReader, DataSourceReader):
    """The events up to and including `endingPosition`, or the documents at a position; fixed when planned."""

    def partitions(self) -> Sequence[InputPartition]:
        options = self.options
        if options.start.kind == "snapshot":
            if options.others or options.several or not options.collection or options.archive:
                raise OptionError("a batch of a snapshot reads one collection of one server, and no archive")
            return key_ranges(options, options.partitions)
        if options.others:
            if options.as_of:
                return merged_past_partitions(options)
            return MergedRanges(tuple(_range(one) for one in options.servers)).sliced(options.partitions)
        if options.as_of:
            return past_partitions(options, _end(MongoDBStream(options), options.as_of))
        events = _range(options)
        if options.partition_by == "time" and options.partitions > 1 and not options.archive:
            return _by_time(options, events)
        return events.sliced(options.partitions)


def _by_time(options: SourceOptions, events: EventRange) -> list[EventRange]:
    """Return the range, cut into ranges with similar numbers of events; the events are counted for this."""
    ahead = read_ahead(MongoDBStream(options))
    try:
        reached = ahead.advance(events.start, BatchLimits(), until=events.end.time, wait_ms=options.await_ms).token
        splits = ahead.splits(events.start, reached, options.partitions)
        return events.cut([token for token in splits if token < events.end])
    finally:
        ahead.close()


def _range(options: SourceOptions) -> EventRange:
    """Return the range between the two positions on this server. Raise PositionLost."""
    mongodb = MongoDBStream(options)
    return EventRange(resolve(mongodb, options.start), _end(mongodb, options.end))


def _end(mongodb: MongoDBStream, position: StreamPosition) -> Token:
    return position.token or end_at(mongodb, position.time or mongodb.now())


class StreamReader(_PartitionReader, Admission):
    """Plans batches in the driver, from one thread, when Spark asks (`admission.py`); `read` runs on workers."""

    def __getstate__(self) -> dict[str, Any]:
        # Workers get the options and the schema, but no connections.
        return {"options": self.options, "_schema": self._schema}

    def commit(self, end: Offset) -> None:
        """Do nothing: readers do not affect the server's oplog."""

    def stop(self) -> None:
        if "stream" in self.__dict__:
            self.stream.close()


_LOG: Final = logging.getLogger(__name__)


class PrefetchingReader(StreamReader, StreamReaderBase):
    """Reads small batches of a stream where they are planned. Spark uses `simple_reader` and `getCache`.

    Starting a task for a batch of a few rows takes a third of the batch's CPU time. Spark avoids this for simple
    sources (`SimpleDataSourceStreamReader`), whose rows come from the process that plans. Small batches use the same
    mechanism, and others use workers: a range gives the same rows wherever it is read. The first and last rows of a
    snapshot also use it, so that a job that begins with a small collection starts no worker at all.

    The mechanism is internal to Spark. If it differs from that of 4.2 and 4.3, every batch goes to the workers.
    """

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
