"""Ranges of events as Arrow batches of BSON columns: sent as Arrow by a Headrace, built from BSON for other servers.

Rule: both transports give the same rows in the same order, and the same events for a slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pymongo.errors import OperationFailure
from pyspark.sql.datasource import InputPartition

from headrace import limits
from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.rows.tokens import Token
from headrace.values.arrow.event_columns import COLUMNS, EventRow, in_slice

ARROW_ROWS: Final = 10_000
_WAIT_MS: Final = 1000
_TOO_LARGE: Final = 10334


class ReadPartition(InputPartition):
    """A partition of a batch. A worker calls `read`; a kind of partition has that, or the `rows` of documents."""

    def read(self, options: SourceOptions, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows, as batches of these columns of BSON.

        Raise PositionLost, PastUnknown, ArchiveUnfit, SnapshotUnsettled or NoSnapshotRead.
        """
        return rows_batches(self.rows(options), columns)

    def rows(self, options: SourceOptions) -> Iterable[EventRow]:
        """Return the rows, with all columns."""
        raise NotImplementedError


def read_range(
    mongodb: MongoDBStream, start: Token, end: Token, columns: Sequence[str], *, slice_: int = 0, slices: int = 1
) -> Iterator[pa.RecordBatch]:
    """Yield the events after `start` up to and including `end`, in order; wait until the server reaches `end`.

    `slice_` of `slices` selects the events of documents by a hash of their key. Raise PositionLost.
    """
    if start >= end:
        return iter(())
    read = _as_arrow if mongodb.arrow else _as_bson
    if not mongodb.options.reader:
        return joined(read(mongodb, start, end, columns, slice_, slices))
    from headrace.spark.pipelines.reader import rewritten_batches

    rows = joined(read(mongodb, start, end, COLUMNS, slice_, slices))
    return rewritten_batches(mongodb.options.reader, rows, columns)


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in larger batches: a reply has the rows of a few milliseconds, but each batch costs two."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if pending and (rows + batch.num_rows > ARROW_ROWS or size + batch.nbytes > limits.ROW_BATCH_BYTES_MAX):
            yield _one(pending)
            pending, rows, size = [], 0, 0
        pending.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if pending:
        yield _one(pending)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _as_arrow(
    mongodb: MongoDBStream, start: Token, end: Token, columns: Sequence[str], slice_: int, slices: int
) -> Iterator[pa.RecordBatch]:
    at = start
    try:
        for batches, reached in _arrow_replies(mongodb, start, end, columns, slice_, slices):
            yield from batches
            at = reached
    except OperationFailure as error:
        if error.code != _TOO_LARGE:
            raise
        # The next event is too large for a message. Read it and the rest through a cursor, which gets fragments.
        yield from _as_bson(mongodb, at, end, columns, slice_, slices)


def _arrow_replies(
    mongodb: MongoDBStream, start: Token, end: Token, columns: Sequence[str], slice_: int, slices: int
) -> Iterator[tuple[list[pa.RecordBatch], Token]]:
    """Yield the batches of each reply, and the token at its end."""
    from headrace.values.arrow.batches import batches_of

    def ask(after: Token) -> dict[str, Any]:
        return mongodb.changes(
            after, end, columns=list(columns), slice=slice_, slices=slices, rowsMax=ARROW_ROWS, waitMs=_WAIT_MS
        )

    reply = ask(start)
    if reply["done"]:
        yield batches_of(reply["arrow"]), end
        return
    # The next reply is requested while this one is processed.
    with ThreadPoolExecutor(1) as pool:
        while True:
            at = Token.of(reply["token"])
            coming = None if reply["done"] else pool.submit(ask, at)
            if reply["rows"]:
                yield batches_of(reply["arrow"]), at
            if coming is None:
                return
            reply = coming.result()


def _as_bson(
    mongodb: MongoDBStream, start: Token, end: Token, columns: Sequence[str], slice_: int, slices: int
) -> Iterator[pa.RecordBatch]:
    from headrace.values.arrow.batches import events_batch

    for events in mongodb.read_raw(start, end):
        if wanted := in_slice(events, slice_, slices):
            yield events_batch(wanted, columns)


def rows_batches(rows: Iterable[EventRow], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield rows, whose values are in the order of `COLUMNS`, as batches of the given columns."""
    from headrace.values.arrow.batches import SCHEMA

    indexes = [COLUMNS.index(name) for name in columns]
    schema = pa.schema([SCHEMA.field(index) for index in indexes])
    each = iter(rows)
    while some := list(islice(each, ARROW_ROWS)):
        filled: list[Any] = list(zip(*some, strict=True))
        arrays = [pa.array(filled[index], type=SCHEMA.field(index).type) for index in indexes]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
