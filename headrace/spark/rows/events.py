"""The columns of the `headrace` source, and a row of them as sinks get it.

Rule: no field of an event is dropped. A field without a column, or with a value of another type than its column's (a
pipeline may change events), is in `other`, under its name. How an event fills them is in
`headrace.values.arrow.event_columns`, how documents become what the columns hold in `documents.py`.

Rows that are not MongoDB's events have an operation type of their own, with `snapshotBegin`, `snapshot`
and `snapshotEnd` (see `timetravel/snapshot.py`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

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
    """One row, in the order of `SCHEMA`, with its server if there are several; times in microseconds since 1970."""

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
    server: str | None = None


TYPED_COLUMNS: Final = ("fullDocument", "fullDocumentBeforeChange")
"""The columns that `documents = columns` makes structs; for each there is a column with the suffix `REST`."""
REST: Final = "Rest"
SERVER: Final = "server"
