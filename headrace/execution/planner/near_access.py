"""The access of a `$near` through an index: the search requests the keys of one cell after the other.

MongoDB's rule: a place on the sphere requires a 2dsphere index, a legacy pair a 2d index. The fields before the
geometry need conditions. Without such an index the query is error 291.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, prod
from typing import TYPE_CHECKING

from headrace.errors import CommandError
from headrace.execution.planner.bounds import Intervals, PathCondition, conditions_of
from headrace.execution.planner.collated_bounds import conditions_for
from headrace.execution.planner.eligibility import holds
from headrace.execution.planner.index_access import (
    RANGE_COUNT_MAX,
    Range,
    are_points,
    index_access,
    ranges_of,
    skip_of,
)
from headrace.execution.planner.index_kinds import CellInterval
from headrace.query.collation import Collation
from headrace.query.match.match_expression import AlwaysBoolean, MatchExpression
from headrace.store.catalog import Collection, Index
from headrace.store.indexes.geo_keys import FLAT, GEO_KINDS, SPHERE
from headrace.store.indexes.index_keys import CUT_BYTES, CUT_KEY
from headrace.store.view import Skip

if TYPE_CHECKING:
    from headrace.geo.cells import SphereCells
    from headrace.geo.near import Near
    from headrace.geo.plane import GridCells


@dataclass(frozen=True)
class NearAccess:
    """One index, and the bounds of all fields except the geometry."""

    index: Index
    near: Near
    bounds: tuple[Intervals | None, ...]
    conditions: Sequence[PathCondition]

    @cached_property
    def position(self) -> int:
        """The position of the geometry field in the index."""
        return list(self.index.spec["key"]).index(self.near.path)

    @cached_property
    def prefixes(self) -> list[bytes] | None:
        """The key prefixes, if all fields before the geometry have point values; otherwise None."""
        before = [intervals or [] for intervals in self.bounds[: self.position]]
        if not all(map(are_points, before)) or prod(map(len, before)) > RANGE_COUNT_MAX:
            return None
        if CUT_KEY in self.index.traits:
            return None
        lows = [low for low, _ in ranges_of(self.index, (*before, None))]
        return None if any(len(low) >= CUT_BYTES for low in lows) else [low[:-1] for low in lows]

    @property
    def kind(self) -> str:
        """The kind of the index: `2d` or `2dsphere`."""
        return str(self.index.spec["key"][self.near.path])

    def cells(self) -> SphereCells | GridCells:
        """Return the cells of the index around the place."""
        if self.kind == SPHERE:
            from headrace.geo.cells import SphereCells

            return SphereCells(self.near.centre, self.near.unit)
        from headrace.geo.plane import Grid, GridCells

        return GridCells(Grid.of(self.index.spec), self.near.pair, is_sphere=self.near.is_sphere)

    @property
    def has_shapes(self) -> bool:
        """Whether documents had several keys when the search began."""
        return has_shapes(self.index)

    def ranges(self, spans: Sequence[tuple[int, int]]) -> tuple[list[Range], Skip | None]:
        """Return the key ranges of the cells with numbers in ascending spans, and the test whether a key is in the
        bounds."""
        intervals: Intervals = [CellInterval(first, last) for first, last in spans]
        if self.prefixes is not None:
            positions = [interval.positions() for interval in intervals]
            return [(prefix + low, prefix + high) for prefix in self.prefixes for low, high in positions], None
        bounds = [*self.bounds]
        bounds[self.position] = intervals
        return ranges_of(self.index, bounds), skip_of(self.index, bounds, self.conditions)


def has_shapes(index: Index) -> bool:
    """Whether documents have had lines, polygons or arrays, so that a document may have several keys."""
    return bool(index.traits - {CUT_KEY})


def near_access(
    collection: Collection, near: Near, node: MatchExpression, collation: Collation | None, hint: Index | None,
    *, hinted: bool,
) -> NearAccess:  # fmt: skip
    """Return the access through the first suitable index. Raise 291 if there is none."""
    conditions = conditions_of(node)
    indexes = collection.indexes if not hinted else () if hint is None else (hint,)
    for index in indexes:
        pattern = index.spec["key"]
        usable = (near.is_sphere and SPHERE, not near.is_geojson and FLAT)
        if near.path not in pattern or pattern[near.path] not in usable or index.spec.get("hidden"):
            continue
        of_index = [condition for condition in conditions_for(index, conditions, collation)
                    if condition.path != near.path]  # fmt: skip
        placed = PathCondition(near.path, None, False, True, None, AlwaysBoolean(True))
        covers_all = holds(index, [*of_index, placed])
        access = index_access(index, of_index, None, is_complete=False, hinted=True)
        before = list(pattern).index(near.path)
        if covers_all and access is not None and None not in access.bounds[:before]:
            return NearAccess(index, near, access.bounds, of_index)
    raise no_index(collection, near)


def field_of_only_index(collection: Collection) -> str:
    """Return the indexed field for a `$geoNear` without a `key`. Raise 27 without an index, or with several of a
    kind."""
    for kind in GEO_KINDS:
        paths: list[str] = [
            next(path for path, of in index.spec["key"].items() if of == kind)
            for index in collection.indexes if kind in index.spec["key"].values()
        ]  # fmt: skip
        if len(paths) > 1:
            raise CommandError(
                27, f"There is more than one {kind} index on {collection.namespace}; unsure which to use for $geoNear"
            )
        for path in paths:
            return path
    raise CommandError(27, "$geoNear requires a 2d or 2dsphere index, but none were found")


def no_index(collection: Collection, near: Near) -> CommandError:
    """Return the error for a `$near` without an index."""
    most = f"{near.most:g}" if isfinite(near.most) else "1.79769e+308"
    is_near_sphere = int(near.is_sphere and not near.is_geojson)
    return CommandError(
        291,
        f"error processing query: ns={collection.namespace}: GEONEAR  field={near.path} maxdist={most} "
        f"isNearSphere={is_near_sphere}\nSort: {{}}\nProj: {{}}\n planner returned error :: caused by :: "
        "unable to find index for $geoNear query",
    )
