"""Change events as the columns of a table.

`event_columns.py` names the columns and fills them from an event. `row_columns.py` fills them without an event.
`batches.py` makes Arrow batches of the columns. It alone imports pyarrow, so it is imported only when a client requests
Arrow.
"""

from headrace.values.arrow.event_columns import (
    COLUMNS,
    DOCUMENTS,
    SIZE,
    EventRow,
    in_slice,
    row_of,
    slice_of,
    token_document,
    token_text,
)
from headrace.values.arrow.row_columns import RowColumns, RowKind

__all__ = [
    "COLUMNS",
    "DOCUMENTS",
    "SIZE",
    "EventRow",
    "RowColumns",
    "RowKind",
    "in_slice",
    "row_of",
    "slice_of",
    "token_document",
    "token_text",
]
