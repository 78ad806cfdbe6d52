"""From a row of the source back to its event, which the stages of a pipeline see.

Rule: an event that became a row and is read back here is the same BSON, except for a token's type bits, which a row
lacks. Fields that a pipeline added come after the event's own fields.

A row of a snapshot is an event, too, with its own operation type and without `wallTime`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import pyarrow as pa
from bson import Int64, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.spark.rows.extjson import dumps, loads
from headrace.values import bson
from headrace.values.arrow.event_columns import COLUMNS, DOCUMENTS, row_of

Document = dict[str, Any]

# The order of fields in a server's events. Fields without a column come from `other`.
_ORDER: Final = (
    "to", "txnNumber", "lsid", "_id", "splitEvent", "operationType", "clusterTime", "collectionUUID", "wallTime",
    "fullDocument", "ns", "documentKey", "operationDescription", "updateDescription", "rawUpdateDescription",
    "stateBeforeChange", "fullDocumentBeforeChange", "nsType",
)  # fmt: skip
_NAMESPACE: Final = (("database", "db"), ("collection", "coll"))
# The columns from which a field of an event is read; `other` is always read.
_SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "_id": ("token",),
    "clusterTime": ("clusterTime", "clusterTimeIncrement"),
    "ns": ("database", "collection"),
    "rawUpdateDescription": ("updateDescription",),
}


def columns_of(fields: Collection[str] | None) -> tuple[str, ...]:
    """Return the columns from which these fields of events are read; None stands for all fields."""
    if fields is None:
        return COLUMNS
    needed = {"other"}
    for name in fields:
        needed.update(_SOURCES.get(name, (name,) if name in COLUMNS else ()))
    return tuple(name for name in COLUMNS if name in needed)


def reader(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return the function from the values of a column of this Arrow type to documents."""
    return bson.decode if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else loads


def writer(kind: pa.DataType) -> Callable[[Document], Any]:
    """Return the inverse of the function that `reader` returns."""
    return bson.encode if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else dumps


def events(
    batch: pa.RecordBatch, fields: Collection[str] | None = None, texts: dict[int, str] | None = None
) -> list[Document]:
    """Return the events of a batch of rows; with `fields` other fields may be omitted.

    `texts` gets the text of each document in an event's fields, by the document's `id` (valid while it is alive).
    """
    names = columns_of(fields)
    cells: dict[str, list[Any]] = {}
    for name in names:
        column = batch.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        values = column.to_pylist()
        if name in DOCUMENTS:
            read, stored = reader(column.type), values
            values = [None if cell is None else read(cell) for cell in stored]
            # The event does not keep the document of `other` alive, so its id may be reused.
            if texts is not None and read is loads and name != "other":
                texts.update((id(document), text) for document, text in zip(values, stored, strict=True) if text)
        cells[name] = values
    rows = zip(*cells.values(), strict=True)
    return [event(dict(zip(names, row, strict=True))) for row in rows]


def text_of(document: Document, texts: dict[int, str]) -> str:
    """Return the document's Extended JSON; the text of unchanged parts is taken from `texts`."""
    known = texts.get(id(document))
    if known is not None:
        return known
    members = [f"{dumps(name)}:{texts.get(id(value)) or dumps(value)}" for name, value in document.items()]
    return "{" + ",".join(members) + "}"


def event(row: dict[str, Any]) -> Document:
    """Return the event of one row: its columns, with documents decoded and times in microseconds; columns may be
    missing."""
    event_fields: Document = dict(row.get("other") or {})
    for name, value in row.items():
        if value is not None and name not in ("other", "clusterTimeIncrement", "token", "database", "collection"):
            field, field_value = _event_field(name, value, row)
            event_fields[field] = field_value
    if row.get("token") is not None and "_id" not in event_fields:
        event_fields["_id"] = {"_data": row["token"]}
    ns = {short: row[name] for name, short in _NAMESPACE if row.get(name) is not None}
    if ns:
        event_fields["ns"] = ns
    ordered = {name: event_fields[name] for name in _ORDER if name in event_fields}
    return ordered | event_fields


def _event_field(name: str, value: Any, row: dict[str, Any]) -> tuple[str, Any]:
    if name == "clusterTime":
        return name, Timestamp(value // 1_000_000, row["clusterTimeIncrement"] or 0)
    if name == "wallTime":
        return name, DatetimeMS(value // 1000)
    if name == "txnNumber":
        return name, Int64(value)
    if name == "updateDescription" and "$v" in value:  # only the oplog's own descriptions have their version
        return "rawUpdateDescription", value
    return name, value


def row_arrays(made: list[dict[str, Any]], batch: pa.RecordBatch, indexes: list[int]) -> pa.RecordBatch:
    """Return the events as rows with the columns of `batch`.

    `indexes` are the rows of `batch` that the events come from; columns that are not an event's are taken from there.
    """
    rows = [row_of(bson.encode(event)) for event in made]
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(COLUMNS, ())
    taken = pa.array(indexes, pa.int64())
    arrays = []
    for field in batch.schema:
        if field.name not in columns:
            arrays.append(batch.column(field.name).take(taken))
        elif pa.types.is_timestamp(field.type):
            moments = pa.array(columns[field.name], pa.int64())
            arrays.append(moments.cast(pa.timestamp("us", field.type.tz)).cast(field.type))
        elif field.name in DOCUMENTS:
            arrays.append(pa.array(_documents(columns[field.name], field.type), field.type))
        else:
            arrays.append(pa.array(columns[field.name], field.type))
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _documents(cells: Any, kind: pa.DataType) -> list[Any]:
    write = writer(kind)
    if write is bson.encode:
        return list(cells)
    return [None if cell is None else write(bson.decode(cell)) for cell in cells]
