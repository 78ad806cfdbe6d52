"""The readers of the data source: batches and streams planned in the driver, partitions read on workers.

Offsets and partitions are planned in `stream/`, which workers also read with; `rows/documents.py` converts documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from headrace.spark.errors import OptionError
from headrace.spark.masks.masked_columns import masked_bson
from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.server_history import check_history
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition
from headrace.spark.rows.documents import Shaper
from headrace.spark.rows.tokens import Token
from headrace.spark.source.admission import Admission
from headrace.spark.stream.collections_partitions import CollectionEvents, CollectionSnapshots, read_collections
from headrace.spark.stream.collections_stream import CollectionsStream
from headrace.spark.stream.merged_stream import MergedStream, merged_past_partitions, read_merged
from headrace.spark.stream.partitions import EventRange, MergedRanges, ServerPartition
from headrace.spark.stream.read_partition import past_partitions, read_partition
from headrace.spark.stream.server_stream import Offset, ServerStream
from headrace.spark.stream.servers_collections import ServersCollectionsStream
from headrace.spark.timetravel.archive import end_at, resolve

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class _PartitionReader:
    """What both readers share: reading a partition as Arrow batches of the schema."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if self.options.stage_into and TaskContext.get():
            from headrace.spark.tables.staged_rows import batch_prefix, staged_row

            if prefix := batch_prefix(self._schema.names):
                schema = to_arrow_schema(self._schema, timezone="UTC")
                return iter([staged_row(self._batches(partition), self.options.stage_into, prefix, schema)])
        return self._batches(partition)

    def _batches(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        shaper = Shaper(self._schema)
        if isinstance(partition, MergedRanges | ServerPartition):
            batches = read_merged(self.options, partition, shaper.columns)
        elif isinstance(partition, CollectionEvents | CollectionSnapshots):
            batches = read_collections(self.options, partition, shaper.columns)
        else:
            batches = read_partition(self.options, partition, shaper.columns)
        mask = self.options.mask
        for batch in batches:
            yield shaper.shape(masked_bson(batch, mask) if mask else batch)
        # What was read is of one history if the server still has it now.
        check_history(self.options)


class BatchReader(_PartitionReader, DataSourceReader):
    """The events up to and including `endingPosition`, or the documents as of a position; fixed when planned."""

    def partitions(self) -> Sequence[InputPartition]:
        options = self.options
        if "snapshot" in {options.start.kind, options.end.kind}:
            raise OptionError("a batch read has no position 'snapshot'; read the collection as a stream, once")
        if options.others:
            if options.as_of:
                return merged_past_partitions(options)
            return MergedRanges(tuple(_range(one) for one in options.servers)).sliced(options.partitions)
        if options.as_of:
            return past_partitions(options, _end(MongoDBStream(options), options.as_of))
        return _range(options).sliced(options.partitions)


def _range(options: SourceOptions) -> EventRange:
    """The range between the two positions on this server. Raises PositionLost."""
    mongodb = MongoDBStream(options)
    return EventRange(resolve(mongodb, options.start), _end(mongodb, options.end))


def _end(mongodb: MongoDBStream, position: StreamPosition) -> Token:
    return position.token or end_at(mongodb, position.time or mongodb.now())


class StreamReader(_PartitionReader, Admission):
    """Plans batches in the driver, from one thread, as Spark asks in `admission.py`; `read` runs on workers."""

    @cached_property
    def stream(self) -> ServerStream | MergedStream | ServersCollectionsStream:
        """The stream that is planned, opened at the first use."""
        if self.options.others:
            return ServersCollectionsStream(self.options) if self.options.several else MergedStream(self.options)
        return CollectionsStream(self.options) if self.options.several else ServerStream(self.options)

    def __getstate__(self) -> dict[str, Any]:
        # Workers get the options and the schema, but no connections.
        return {"options": self.options, "_schema": self._schema}

    def commit(self, end: Offset) -> None:
        """Nothing to do: the server's oplog is not affected by readers."""

    def stop(self) -> None:
        if "stream" in self.__dict__:
            self.stream.close()
