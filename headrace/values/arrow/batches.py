"""Change events as Arrow record batches: the columns of `event_columns.py`, documents as binary.

This is the only module outside `spark/` and `demo/` that imports pyarrow. A module that imports it must also work where
pyarrow is not installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.values.arrow.event_columns import COLUMNS, DOCUMENTS, SIZE, RowColumns, RowKind, row_of, token_text
from headrace.values.position import increment

_TIME: Final = pa.timestamp("us", tz="UTC")
_TYPES: Final = (
    dict.fromkeys(COLUMNS, pa.string())
    | dict.fromkeys(DOCUMENTS, pa.binary())
    | dict.fromkeys(("clusterTime", "wallTime"), _TIME)
    | dict.fromkeys(("clusterTimeIncrement", "txnNumber"), pa.int64())
)
SCHEMA: Final = pa.schema([pa.field(name, _TYPES[name], nullable=name != "token") for name in COLUMNS])
_SIZE_FIELD: Final = pa.field(SIZE, pa.int64())
_KIND_COLUMNS: Final = {
    "collection": "collection",
    "database": "database",
    "operationType": "operation",
    "other": "other",
}
"""The columns that a `RowKind` defines."""
_FRAME_BYTES: Final = 1024  # more than the bytes of an IPC stream besides its schema and its batch


def events_batch(events: Sequence[bytes], columns: Sequence[str] = COLUMNS) -> pa.RecordBatch:
    """The events (BSON) as one batch of these columns, in this order. The columns may include `SIZE`."""
    schema = _schema(columns)
    arrays = [pa.array(values, type=field.type) for values, field in zip(_values(events, columns), schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def columns_batch(rows: RowColumns, columns: Sequence[str]) -> pa.RecordBatch:
    """The rows as one batch of these columns, equal to the `events_batch` of their events."""
    schema = _schema(columns)
    if not rows.events:
        arrays = [_plain_array(rows, field) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    filled: list[Sequence[Any]] = list(zip(*rows.rows()))
    values = (rows.sizes() if name == SIZE else filled[COLUMNS.index(name)] for name in columns)
    arrays = [pa.array(some, type=field.type) for some, field in zip(values, schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _plain_array(rows: RowColumns, field: pa.Field) -> pa.Array:
    """One column of rows that have no complete events between them."""
    name, kinds = field.name, rows.kinds
    if name in ("lsid", "txnNumber", "fullDocumentBeforeChange"):
        return pa.nulls(len(kinds), field.type)
    if name in _KIND_COLUMNS:
        kind_value = attrgetter(_KIND_COLUMNS[name])
        different = set(map(kind_value, set(kinds)))
        if len(different) == 1:
            return pa.repeat(pa.scalar(different.pop(), field.type), len(kinds))
        return pa.array(list(map(kind_value, kinds)), type=field.type)
    if name == "clusterTime":
        seconds = pc.shift_right(pa.array(rows.positions, pa.uint64()), pa.scalar(32, pa.uint64()))
        return pc.multiply(seconds.cast(pa.int64()), 1_000_000).cast(field.type)
    if name == "wallTime":
        milliseconds = pa.Array.from_buffers(pa.int64(), len(kinds), [None, pa.py_buffer(b"".join(rows.walls))])
        return pc.multiply(milliseconds, 1000).cast(field.type)
    return pa.array(_plain_values(rows, name), type=field.type)


def _plain_values(rows: RowColumns, name: str) -> Sequence[Any]:
    match name:
        case "token":
            return rows.tokens
        case "clusterTimeIncrement":
            return [increment(position) for position in rows.positions]
        case "documentKey":
            return rows.keys
        case "fullDocument":
            return _details(rows, {kind for kind in set(rows.kinds) if kind.shows_document})
        case "updateDescription":
            return _details(rows, {kind for kind in set(rows.kinds) if kind.shows_update})
    assert name == SIZE
    return rows.sizes()


def _details(rows: RowColumns, shown: set[RowKind]) -> Sequence[bytes | None]:
    """The details of the rows whose kind is in `shown`; None for other rows."""
    if len(shown) == len(set(rows.kinds)):
        return rows.details
    return [detail if kind in shown else None for kind, detail in zip(rows.kinds, rows.details)]


def _schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([_SIZE_FIELD if name == SIZE else SCHEMA.field(name) for name in columns])


def _values(events: Sequence[bytes], columns: Sequence[str]) -> Iterator[Sequence[Any]]:
    """The values of each column."""
    filled: list[Sequence[Any]] = []
    if not set(columns) <= {SIZE, "token"}:
        filled = list(zip(*map(row_of, events))) or [()] * len(COLUMNS)
    for name in columns:
        if name == SIZE:
            yield list(map(len, events))
        else:
            yield filled[COLUMNS.index(name)] if filled else list(map(token_text, events))


def ipc_buffer(batch: pa.RecordBatch) -> pa.Buffer:
    """The batch as a complete Arrow IPC stream."""
    room = pa.allocate_buffer(batch.schema.serialize().size + pa.ipc.get_record_batch_size(batch) + _FRAME_BYTES)
    with pa.FixedSizeBufferWriter(room) as sink:
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return room.slice(0, sink.tell())


def batches_of(stream: bytes) -> list[pa.RecordBatch]:
    """The batches of an Arrow IPC stream. They share the stream's memory."""
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        return list(reader)
