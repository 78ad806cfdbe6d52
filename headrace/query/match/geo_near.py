"""The condition of `$near` and `$nearSphere`: a document has a geometry in a range of distances. The plan orders the
documents by an index (`execution/near_documents.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import CommandError
from headrace.query.match.match_expression import AlwaysBoolean, And, DocumentTest, MatchExpression, MatchType
from headrace.values.paths import ValueTest, split_path

if TYPE_CHECKING:
    from headrace.geo.near import Near


@dataclass(frozen=True, slots=True)
class GeoNearMatchExpression(MatchExpression):
    """`$near`, which is allowed only at the top of a filter."""

    near: Near

    @property
    def order(self) -> tuple[Any, ...]:
        return (MatchType.GEO_NEAR, self.near.path, ())

    def compiled(self) -> DocumentTest:
        find = self.near.finder()
        return lambda document: find(document) is not None

    def single(self) -> ValueTest:
        return lambda value: False

    def fields(self) -> set[str] | None:
        return {split_path(self.near.path)[0]}


def check_nears(node: MatchExpression, count: int) -> None:
    """Raise 2 for a filter with more than one `$near`, or with a `$near` that is not at its top. `count`: how many it
    has."""
    if count > 1:
        raise CommandError(2, "Too many geoNear expressions")
    if near_of(node) is None and not isinstance(node, AlwaysBoolean):
        raise CommandError(2, "geoNear must be top-level expr")


def near_of(node: MatchExpression) -> Near | None:
    """Return the `$near` of an optimized filter; None if it has none."""
    children = node.children if isinstance(node, And) else (node,)
    return next((child.near for child in children if isinstance(child, GeoNearMatchExpression)), None)


def without_near(node: MatchExpression) -> MatchExpression:
    """Return a filter without its `$near`."""
    children = node.children if isinstance(node, And) else (node,)
    return And(tuple(child for child in children if not isinstance(child, GeoNearMatchExpression))).optimized()
