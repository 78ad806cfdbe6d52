"""The columns of the `headrace` source, and its rows as sinks get them.

Rule: no field of an event is dropped. A field goes to `other`, under its name, if it has no column, or if its type is
not the column's (a pipeline may change events). `headrace.values.arrow.event_columns` fills the columns from an event;
`typed.py` converts the documents in them.

Rows that are not MongoDB events have their own operation types: `snapshotBegin`, `snapshot` and `snapshotEnd` (see
`timetravel/snapshot.py`).
"""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


SCHEMA: Final = (
    "token STRING NOT NULL, clusterTime TIMESTAMP, clusterTimeIncrement BIGINT, operationType STRING, "
    "database STRING, collection STRING, documentKey STRING, fullDocument STRING, "
    "fullDocumentBeforeChange STRING, updateDescription STRING, lsid STRING, txnNumber BIGINT, "
    "wallTime TIMESTAMP, other STRING"
)

SNAPSHOT_BEGIN: Final = "snapshotBegin"
SNAPSHOT: Final = "snapshot"
SNAPSHOT_END: Final = "snapshotEnd"
SNAPSHOT_KINDS: Final = (SNAPSHOT_BEGIN, SNAPSHOT, SNAPSHOT_END)
"""All operation types of rows of snapshots. The text of this tuple is also a list in SQL."""
KEYED: Final = frozenset({"delete", "insert", "replace", "update"})
"""Events of one document, named by its key."""
DOCUMENT_OPERATIONS: Final = KEYED | {SNAPSHOT}
INVALIDATING: Final = frozenset({"drop", "dropDatabase", "invalidate", "rename"})
"""After these events the collection of that name is gone or replaced; new rows bring its later documents."""


class Row(NamedTuple):
    """One row, in the order of `SCHEMA`, and its server if there are several. Times are microseconds since 1970."""

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
"""The columns that are structs with `documents = columns`; each also has a column with the suffix `REST`."""
REST: Final = "Rest"
SERVER: Final = "server"


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches with this schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # PySpark 4.1 assumes UTC; 4.3 requires the argument.
    timezone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **timezone)
