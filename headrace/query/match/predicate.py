"""A parsed filter: a callable on documents that also has the fields it reads and the equalities it requires."""

from __future__ import annotations

from typing import Any

from headrace.query.match.match_expression import And, DocumentTest, LeafMatchExpression, MatchExpression
from headrace.time_limit import limited
from headrace.values.bson import MISSING


class Predicate:
    """Tells whether a document matches. Hot loops use `test`, the same function without the cost of `__call__`."""

    __slots__ = ("_node", "test")

    def __init__(self, node: MatchExpression) -> None:
        """Compile `node`, which must be optimized."""
        self._node = node
        self.test: DocumentTest = limited(node.compiled())

    def __call__(self, document: dict[str, Any]) -> bool:
        return self.test(document)

    @property
    def node(self) -> MatchExpression:
        """The match expression, for code that does not compile the expression to closures."""
        return self._node

    def fields(self) -> set[str] | None:
        """Names of the top-level fields that the filter reads; None if it may read any."""
        return self._node.fields()

    def conjuncts(self) -> list[Predicate]:
        """Predicates whose conjunction is equivalent to this one."""
        if isinstance(self._node, And):
            return [Predicate(child) for child in self._node.children]
        return [self]

    def equality(self, path: str) -> Any:
        """The value of the last equality that the filter requires of a path; MISSING if there is none."""
        children = self._node.children if isinstance(self._node, And) else (self._node,)
        wanted = MISSING
        for child in children:
            if isinstance(child, LeafMatchExpression) and child.path == path and child.wanted is not MISSING:
                wanted = child.wanted
        return wanted

    def matched_index(self, document: dict[str, Any]) -> str | None:
        """The array index for the positional operator `$`; None if no array element was matched."""
        return self._node.find_match(document)[1]
