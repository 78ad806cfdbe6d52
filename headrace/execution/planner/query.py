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
    from headrace.execution.planner.index_access import IndexRange

Shape = tuple[Any, ...]
"""Operators and paths of a filter, the sort and the collation."""


@dataclass(frozen=True, slots=True)
class Query:
    """A filter, parsed and as sent, and the collation. `node` and `test` are None if every document matches."""

    node: MatchExpression | None
    test: Callable[[dict[str, Any]], bool] | None
    collation: Collation | None
    spec: dict[str, Any] = field(default_factory=dict)
    between: IndexRange | None = None
    """A range of the hinted index's keys."""
    uses_cache: bool = True
    """Whether the plan cache may decide and learn."""
    has_text: bool = False
    """Whether the filter has a text search."""


@dataclass(frozen=True, slots=True)
class Order:
    """The requested order, number of documents, and fields."""

    sort: SortKey | None = None
    limit: int | None = None
    fields: tuple[str, ...] | None = None
    """The fields that are enough; None: whole documents."""

    @property
    def is_asked(self) -> bool:
        """Whether an order is requested."""
        return self.sort is not None and bool(self.sort.paths)


ANY_ORDER: Final = Order()


def shape_of(node: MatchExpression | None, sort: SortKey | None, collation: Collation | None) -> Shape:
    """Return the query shape, which queries share if they differ only in values."""
    return (
        () if node is None else node.order,
        () if sort is None else sort.paths,
        None if collation is None else collation.document,
    )


def hash_of(*items: Any) -> str:
    """Return eight hexadecimal digits as a hash of a shape and other items."""
    return f"{zlib.crc32(repr(items).encode()):08X}"
