"""A parsed filter: call it with a document; it also tells what it looks at and what it demands."""

from __future__ import annotations

from typing import Any

from headrace.query.match.match_expression import Both, DocumentTest, Leaf, Node
from headrace.values.bson import MISSING


class Predicate:
    """Whether a document matches. Hot loops bind `test`, which is the same function without the call."""

    __slots__ = ("_node", "test")

    def __init__(self, node: Node) -> None:
        """`node` is simplified already."""
        self._node = node
        self.test: DocumentTest = node.compiled()

    def __call__(self, document: dict[str, Any]) -> bool:
        return self.test(document)

    @property
    def node(self) -> Node:
        """The tree, for those who compile it to something else."""
        return self._node

    def fields(self) -> set[str] | None:
        """Top-level fields of the document it looks at; None if it may look at any."""
        return self._node.fields()

    def conjuncts(self) -> list[Predicate]:
        """Predicates that hold together exactly when this one does."""
        if isinstance(self._node, Both):
            return [Predicate(part) for part in self._node.parts]
        return [self]

    def equality_pairs(self) -> list[tuple[str, Any]]:
        """(path, value) of every equality that must hold; the same path may be there twice."""
        parts = self._node.parts if isinstance(self._node, Both) else (self._node,)
        return [(part.path, part.wanted) for part in parts if isinstance(part, Leaf) and part.wanted is not MISSING]

    def equalities(self) -> dict[str, Any]:
        """`equality_pairs` as a dict; of two values demanded for one path the last."""
        return dict(self.equality_pairs())

    def matched_index(self, document: dict[str, Any]) -> str | None:
        """The array index that the positional operator `$` stands for; None if no array was matched into."""
        return self._node.find(document)[1]
