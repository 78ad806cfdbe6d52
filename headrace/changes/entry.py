"""An oplog entry, parsed once for all streams.

An ordinary entry holds one operation, a transaction's entry many, a no-op none. Derived data is stored with the entry
for the next stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from headrace.changes.apply_ops import EntryLookup, unwound, unwound_in_pieces
from headrace.changes.operation import Operation
from headrace.changes.slicing import sliced

_COMMAND: Final = b"\x02op\0\x02\0\0\0c\0"
_HEAD_BYTES: Final = 512
"""The number of first bytes of an entry in which to look for its `op`, which follows the fields of the session."""
__all__ = ["DecodedEntry", "EntryLookup"]


class DecodedEntry:
    """One entry of the oplog, parsed lazily. Parsed data is kept."""

    __slots__ = ("_operations", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._operations: tuple[Operation, ...] | None = None

    def operations(self, history: EntryLookup | None = None) -> tuple[Operation, ...]:
        """Return the changes in this entry, in order; none for no-ops and for transactions not yet committed.

        `history` finds a transaction's earlier entries. Raises error 286 if they no longer exist.
        """
        if self._operations is None:
            operation = sliced(self.data)
            if operation is not None:
                self._operations = (operation,)
            else:
                self._operations = unwound(self.data, history)
        return self._operations

    @property
    def may_be_long(self) -> bool:
        """Whether it may have very many operations that are not unwound yet. Only a transaction's last entry may."""
        return self._operations is None and self.data.find(_COMMAND, 0, _HEAD_BYTES) > 0

    def pieces(self, history: EntryLookup | None = None) -> Iterator[Sequence[Operation]]:
        """Yield the changes of `operations`, some at a time. They are not stored."""
        return iter((self._operations,)) if self._operations is not None else unwound_in_pieces(self.data, history)
