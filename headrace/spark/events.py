"""A change event as a row: the columns of the `headrace` source, and how an event fills them.

Rule: nothing of an event is lost. Each field has its column, documents as canonical Extended JSON
(`extjson.py`); what has no column, or is not what its column takes (a pipeline may reshape events), is
in `other`, under its own name.

Rows that are not MongoDB's events have an operation type of their own, with `snapshotBegin`, `snapshot`
and `snapshotEnd` (see `snapshot.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bson import Int64, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.spark.extjson import dumps

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA: Final = (
    "token STRING NOT NULL, clusterTime TIMESTAMP, clusterTimeIncrement BIGINT, operationType STRING, "
    "database STRING, collection STRING, documentKey STRING, fullDocument STRING, "
    "fullDocumentBeforeChange STRING, updateDescription STRING, lsid STRING, txnNumber BIGINT, "
    "wallTime TIMESTAMP, other STRING"
)

SNAPSHOT_BEGIN: Final = "snapshotBegin"
SNAPSHOT: Final = "snapshot"
SNAPSHOT_END: Final = "snapshotEnd"


class Row(NamedTuple):
    """One row, in the order of `SCHEMA`; times in microseconds since the epoch."""

    token: str
    clusterTime: int | None = None
    clusterTimeIncrement: int | None = None
    operationType: str | None = None
    database: str | None = None
    collection: str | None = None
    documentKey: str | None = None
    fullDocument: str | None = None
    fullDocumentBeforeChange: str | None = None
    updateDescription: str | None = None
    lsid: str | None = None
    txnNumber: int | None = None
    wallTime: int | None = None
    other: str | None = None


# A raw description (showRawUpdateDescription) comes instead of the other one, and says what it is by its fields.
_DOCUMENTS: Final = {
    "documentKey": "documentKey",
    "fullDocument": "fullDocument",
    "fullDocumentBeforeChange": "fullDocumentBeforeChange",
    "lsid": "lsid",
    "rawUpdateDescription": "updateDescription",
    "updateDescription": "updateDescription",
}


def row_of(event: dict[str, Any]) -> Row:
    """The row of a change event, decoded as `headrace.values.bson` decodes; its `_id` must be its token."""
    columns: dict[str, Any] = {"token": event["_id"]["_data"]}
    other: dict[str, Any] = {}
    for name, value in event.items():
        kind = type(value)
        if name in _DOCUMENTS and kind is dict:
            columns[_DOCUMENTS[name]] = dumps(value)
        elif name == "operationType" and kind is str:
            columns[name] = value
        elif name == "clusterTime" and kind is Timestamp:
            columns[name], columns["clusterTimeIncrement"] = value.time * 1_000_000, value.inc
        elif name == "ns" and _plain_namespace(value):
            columns["database"], columns["collection"] = value.get("db"), value.get("coll")
        elif name == "txnNumber" and kind is Int64:
            columns[name] = int(value)
        elif name == "wallTime" and kind is DatetimeMS and abs(int(value)) < 1 << 52:
            columns[name] = int(value) * 1000
        elif name != "_id":
            other[name] = value
    if other:
        columns["other"] = dumps(other)
    return Row(**columns)


def _plain_namespace(value: Any) -> bool:
    return type(value) is dict and value.keys() <= {"db", "coll"} and all(type(name) is str for name in value.values())


def to_batch(rows: Sequence[Row] | Iterable[Row], schema: pa.Schema) -> pa.RecordBatch:
    """The rows as one Arrow batch of the schema that Spark derives from `SCHEMA`."""
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
