"""A query as the planner sees it, and its shape: everything but the values."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace.query.collation import Collation
from headrace.query.match.match_expression import MatchExpression
from headrace.query.sort import SortKey

if TYPE_CHECKING:
    from headrace.execution.planner.key_range import IndexRange

Shape = tuple[Any, ...]
"""Operators and paths of a filter, the sort and the collation."""


@dataclass(frozen=True, slots=True)
class Query:
    """A filter, parsed and as it was sent, and the collation. `node` and `test` are None where everything matches."""

    node: MatchExpression | None
    test: Callable[[dict[str, Any]], bool] | None
    collation: Collation | None
    spec: dict[str, Any] = field(default_factory=dict)
    between: IndexRange | None = None
    """A range of the hinted index's keys."""
    uses_cache: bool = True
    """Whether the plan cache may decide, and learns."""
    has_text: bool = False
    """Whether the filter has a search."""


@dataclass(frozen=True, slots=True)
class Order:
    """The order that is asked for, of how many documents, and which fields are enough."""

    sort: SortKey | None = None
    limit: int | None = None
    fields: tuple[str, ...] | None = None
    """None: all of a document."""

    @property
    def is_asked(self) -> bool:
        """Whether there is an order."""
        return self.sort is not None and bool(self.sort.paths)


ANY_ORDER: Final = Order()


def shape_of(node: MatchExpression | None, sort: SortKey | None, collation: Collation | None) -> Shape:
    """Return the shape that queries share which differ only in their values."""
    return (
        () if node is None else node.order,
        () if sort is None else sort.paths,
        None if collation is None else collation.document,
    )


def hash_of(*items: Any) -> str:
    """Eight hexadecimal digits for a shape and other items."""
    return f"{zlib.crc32(repr(items).encode()):08X}"
