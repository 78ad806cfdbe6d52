"""The immutable state that a commit publishes and that a reader holds from beginning to end.

The store has one current `StoreState`. A write transaction changes drafts (`WriteTransaction`), and `Store.publish`
replaces the current state by the next one, with one assignment. A state and all objects in it are never changed. Their
caches (`Index.document_fields`, `Index.fields`, `Index.key_maker`, `Collection.plan_cache`) are derived from the other
fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from headrace.store.catalog import Catalog


class DocumentCount(NamedTuple):
    """The number of a collection's documents and, for a capped collection, their bytes. A collection is counted when
    the count is first needed. Until all are counted, the count has the documents up to the record `through`."""

    documents: int
    size: int
    through: bytes | None
    """The last counted record; None: all are counted."""


NOT_COUNTED = DocumentCount(0, 0, b"")


class StoreState(NamedTuple):
    """A state of the store in memory, which belongs to one state of the tables."""

    catalog: Catalog
    counts: dict[int, DocumentCount]
    """Counts by the collection's number."""
    last_position: int
    """The position of the newest entry of the oplog."""
    last_wall_ms: int
    """The wall clock of that entry."""
    pruned_through: int
    """The newest pruned position, or -1."""
    cluster_parameters: dict[str, Any]


class CountChange:
    """A write transaction's change of one collection's count."""

    __slots__ = ("base", "documents", "removed", "size")

    def __init__(self) -> None:
        self.base: DocumentCount | None = None
        """The count that the transaction has taken; None: the changes apply to the published count."""
        self.documents = 0
        self.size = 0
        self.removed: list[bytes] = []
        """The records of removed documents, until all documents are counted."""

    def reset(self, count: DocumentCount) -> None:
        """Set the collection's count, which includes all changes of the transaction so far."""
        self.base = count
        self.documents = self.size = 0
        self.removed = []

    def applied(self, published: DocumentCount | None) -> DocumentCount | None:
        """Return the count after the change; None if nothing is known."""
        count = published if self.base is None else self.base
        if count is None:
            return None
        if count.through is None:
            counted = count.documents + self.documents, count.size + self.size, None
            return tuple.__new__(DocumentCount, counted)  # avoids a call per commit
        if count.size and self.size:
            return None
        gone = sum(record <= count.through for record in self.removed)
        return DocumentCount(count.documents - gone, count.size, count.through)
