"""Change events as Arrow batches: the columns of `event_columns.py`, documents as binary.

The only file beneath Spark that imports pyarrow; who imports this one must do without it where it is not installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from headrace.values.event_columns import COLUMNS, DOCUMENTS, SIZE, row_of, token_text

_TIME: Final = pa.timestamp("us", tz="UTC")
_TYPES: Final = (
    dict.fromkeys(COLUMNS, pa.string())
    | dict.fromkeys(DOCUMENTS, pa.binary())
    | dict.fromkeys(("clusterTime", "wallTime"), _TIME)
    | dict.fromkeys(("clusterTimeIncrement", "txnNumber"), pa.int64())
)
SCHEMA: Final = pa.schema([pa.field(name, _TYPES[name], nullable=name != "token") for name in COLUMNS])


_SIZE_FIELD: Final = pa.field(SIZE, pa.int64())


def events_batch(events: Sequence[bytes], columns: Sequence[str] = COLUMNS) -> pa.RecordBatch:
    """The events (BSON) as one batch of these columns, in this order; `SIZE` may be among them."""
    schema = pa.schema([_SIZE_FIELD if name == SIZE else SCHEMA.field(name) for name in columns])
    arrays = [pa.array(values, type=field.type) for values, field in zip(_values(events, columns), schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


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


def ipc_bytes(batch: pa.RecordBatch) -> bytes:
    """The batch as a whole Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def batches_of(stream: bytes) -> list[pa.RecordBatch]:
    """The batches of an Arrow IPC stream; they share its memory."""
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        return list(reader)
