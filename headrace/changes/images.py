"""Documents before and after a change: what `fullDocument` and `fullDocumentBeforeChange` show."""

from __future__ import annotations

from typing import Protocol

from headrace.values.position import Position


class Lookup(Protocol):
    """What the store knows of documents beyond the oplog."""

    def current(self, namespace: str, uuid: bytes | None, document_key: bytes) -> bytes | None:
        """The document with this key (raw BSON `{_id}`) as it is now, or None.

        It is looked up in the collection that has the name now; with a `uuid`, only if it is that collection.
        """

    def pre_image(self, uuid: bytes, position: Position, index: int) -> bytes | None:
        """The document as it was before the change at `position` (and place `index` in its transaction's entry)."""
