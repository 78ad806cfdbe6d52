"""An oplog entry, told apart once and handed to every stream that may want it.

An ordinary entry holds one operation, a transaction's many, a noop none. What is found out about an entry is
kept with it, so that each further stream that looks at it finds the work done.
"""

from __future__ import annotations

from typing import Any

from headrace.changes.operation import Operation
from headrace.changes.slicing import sliced
from headrace.changes.transaction import History, unwound
from headrace.values.bson import decode, find_element
from headrace.values.position import Position, from_bson_value

__all__ = ["DecodedEntry", "History"]


class DecodedEntry:
    """One entry of the oplog, lazily: cheap to make, and whatever is worked out is kept."""

    __slots__ = ("_document", "_operations", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._operations: tuple[Operation, ...] | None = None
        self._document: dict[str, Any] | None = None

    @property
    def document(self) -> dict[str, Any]:
        """The whole entry decoded, once."""
        if self._document is None:
            self._document = decode(self.data)
        return self._document

    @property
    def position(self) -> Position:
        """The entry's `ts`."""
        operation = sliced(self.data)
        return operation.position if operation is not None else position_of(self.data)

    def operations(self, history: History | None = None) -> tuple[Operation, ...]:
        """The changes this entry tells of, in order; empty for noops, and for transactions not yet committed.

        Raises error 286 when a transaction's earlier entries are no longer there; `history` finds them.
        """
        if self._operations is None:
            operation = sliced(self.data)
            if operation is not None:
                self._operations = (operation,)
            else:
                self._operations = unwound(self.data, history)
        return self._operations

    def forget(self) -> None:
        """Give back the memory of everything but the entry itself; it is worked out again when asked for."""
        self._operations = None
        self._document = None


def position_of(data: bytes) -> Position:
    """The `ts` of any entry."""
    found = find_element(data, b"ts")
    if found is None:
        raise ValueError("an oplog entry without ts")
    return from_bson_value(data[found[1] : found[2]])
