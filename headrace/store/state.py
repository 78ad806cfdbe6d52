"""The immutable state that a commit publishes, which a reader holds from beginning to end.

The store has one current `StoreState`. A write transaction works on drafts of what it changes (`WriteTransaction`), and
`Store.publish` puts the next state in the place of the current one, by one assignment. A state is never changed, nor
anything that can be reached from it; what its objects compute once and keep (`Index.document_fields`, `Index.fields`,
`Index.key_maker`, `Collection.plan_cache`) follows from the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from headrace.store.catalog import Catalog


class DocumentCount(NamedTuple):
    """The number of documents of a collection, and of a capped one their bytes. A collection is counted when the count
    is first needed; until all are counted, these are the documents up to the record `through`."""

    documents: int
    size: int
    through: bytes | None
    """The last record that is counted; None: all are."""


NOT_COUNTED = DocumentCount(0, 0, b"")


class StoreState(NamedTuple):
    """A state of the store in memory, which goes with one state of the tables."""

    catalog: Catalog
    counts: dict[int, DocumentCount]
    """By the collection's number."""
    last_position: int
    """The position of the newest entry of the oplog."""
    last_wall_ms: int
    """The wall clock of that entry."""
    pruned_through: int
    """The newest position that was pruned, -1: none."""
    cluster_parameters: dict[str, Any]


class CountChange:
    """The change that a write transaction makes to the count of one collection."""

    __slots__ = ("base", "documents", "removed", "size")

    def __init__(self) -> None:
        self.base: DocumentCount | None = None
        """The count that the transaction has taken itself; None: the changes apply to the published count."""
        self.documents = 0
        self.size = 0
        self.removed: list[bytes] = []
        """The records of removed documents, while not all documents are counted."""

    def reset(self, count: DocumentCount) -> None:
        """The collection, with all that the transaction has done to it so far, has this count."""
        self.base = count
        self.documents = self.size = 0
        self.removed = []

    def applied(self, published: DocumentCount | None) -> DocumentCount | None:
        """Return the count after the change; None where nothing is known."""
        count = published if self.base is None else self.base
        if count is None:
            return None
        if count.through is None:
            counted = count.documents + self.documents, count.size + self.size, None
            return tuple.__new__(DocumentCount, counted)  # without a call: for each commit
        if count.size and self.size:
            return None
        gone = sum(record <= count.through for record in self.removed)
        return DocumentCount(count.documents - gone, count.size, count.through)
