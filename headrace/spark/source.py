"""The Python Data Source `headrace`: change events for `spark.read` and `spark.readStream`.

An offset is a token, and during a snapshot also the last key that was read. A partition is frozen and needs
nothing but itself and the options. Reading a range of events again gives the same rows; reading a chunk of a
snapshot again may give newer documents, each with the token at which it is true (`snapshot.py`).

Not given here: the document after an update (`fullDocument: updateLookup` would give another one at each
reading). Ask for stored images (`fullDocument: whenAvailable`) or apply `updateDescription`, as `mirror.py` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from bson import Timestamp
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from headrace.spark.events import SCHEMA, Row, row_of, to_batch
from headrace.spark.feed import Feed
from headrace.spark.options import OptionError, Position, SourceOptions, parse_options
from headrace.spark.readahead import ReadAhead
from headrace.spark.snapshot import Chunk, Snapshot
from headrace.spark.tokens import Token

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

CHUNK_ROWS: Final = 20_000
_ARROW_ROWS: Final = 10_000
_LATEST: Final = Position("latest")

Offset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EventRange(InputPartition):
    """The events after `start` up to and including `end`."""

    start: Token
    end: Token


@dataclass(frozen=True, slots=True)
class SnapshotPart(InputPartition):
    """A chunk of the snapshot at `token`, with the row before the first one and the row after the last one."""

    token: Token
    first: bool
    chunk: Chunk | None


class HeadraceSource(DataSource):
    """`format("headrace")`; for the options see `headrace.spark.options.parse_options`."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(parse_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(parse_options(self.options), schema)


class _Reader:
    """What both readers share: rows of a partition as Arrow batches of the schema."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self._schema, timezone="UTC")
        rows = self._rows(partition)
        while batch := list(islice(rows, _ARROW_ROWS)):
            yield to_batch(batch, schema)

    def _rows(self, partition: InputPartition) -> Iterator[Row]:
        if isinstance(partition, EventRange):
            return map(row_of, Feed(self.options).read(partition.start, partition.end))
        assert isinstance(partition, SnapshotPart)
        return _snapshot_rows(Snapshot(self.options), partition)


def _snapshot_rows(snapshot: Snapshot, part: SnapshotPart) -> Iterator[Row]:
    if part.first:
        yield snapshot.begin(part.token)
    if part.chunk:
        yield from snapshot.read(part.chunk)
    else:
        yield snapshot.end()


class BatchReader(_Reader, DataSourceReader):
    """The events between two positions, `endingPosition` included; both are settled when the query is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        if "snapshot" in {self.options.start.kind, self.options.end.kind}:
            raise OptionError("a batch read has no position 'snapshot'; read the collection as a stream, once")
        feed = Feed(self.options)
        start = feed.resolve(self.options.start)
        end = self.options.end
        return [EventRange(start, end.token or feed.end_at(end.time or feed.now()))]


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver's side of a stream. Spark asks from one thread; `read` runs elsewhere and uses nothing of the rest."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._until: Timestamp | None = None

    @cached_property
    def _feed(self) -> Feed:
        return Feed(self.options)

    @cached_property
    def _ahead(self) -> ReadAhead:
        return ReadAhead(self._feed)

    @cached_property
    def _snapshot(self) -> Snapshot:
        return Snapshot(self.options)

    def __getstate__(self) -> dict[str, Any]:
        # Workers get the options and the schema; connections are not for them.
        return {"options": self.options, "_schema": self._schema, "_until": None}

    def initialOffset(self) -> Offset:
        start = self.options.start
        if start.kind == "snapshot":
            return _offset(self._feed.resolve(_LATEST), after="")
        # Spark keeps no offset before the first batch, so the first batch is made even when there is nothing in it.
        return _offset(self._feed.resolve(start), initial=True)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.rows_max) if self.options.rows_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._feed.now()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if _in_snapshot(start):
            return self._next_chunk(start, rows_max or CHUNK_ROWS)
        token = _token(start)
        reach = self._ahead.advance(token, rows_max=rows_max, until=self._until, wait_ms=self.options.await_ms)
        quiet_ms = (reach.token.time.time - token.time.time) * 1000
        if reach.rows or start.get("initial") or reach.closed or quiet_ms >= self.options.idle_advance_ms:
            # Behind an invalidate there may be a collection that was never written: renamed onto this name.
            again = reach.closed and self.options.start.kind == "snapshot"
            return _offset(reach.token, after="") if again else _offset(reach.token)
        return start

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if not _in_snapshot(start):
            return [EventRange(_token(start), _token(end))]
        first = start["after"] == ""
        chunk = None
        if _in_snapshot(end):
            chunk = Chunk(end["after"], "" if end["single"] else start["after"])
        return [SnapshotPart(_token(start), first, chunk)]

    def commit(self, end: Offset) -> None:
        """Nothing: what was read stays on the server for as long as its oplog goes back."""

    def stop(self) -> None:
        if "_ahead" in self.__dict__:
            self._ahead.close()

    def _next_chunk(self, start: Offset, rows_max: int) -> Offset:
        chunk = self._snapshot.next_chunk(start["after"], rows_max)
        if chunk:
            return _offset(_token(start), after=chunk.upto, single=not chunk.after)
        if self._until:
            # Rows of the snapshot may be newer than the run's beginning; with the events up to here they agree.
            self._until = self._feed.now()
        return _offset(_token(start))


def _offset(token: Token, **more: Any) -> Offset:
    bits = {"typeBits": token.type_bits} if token.type_bits else {}
    return {"token": token.text} | bits | more


def _token(offset: Offset) -> Token:
    return Token(offset["token"], offset.get("typeBits", ""))


def _in_snapshot(offset: Offset) -> bool:
    return "after" in offset
