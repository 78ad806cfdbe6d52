"""The keys of a 2dsphere or a 2d index: the cells of a document's geometry, with the values of the other fields.

    {a: 1, at: {type: "Point", ...}}  under  {a: 1, at: "2dsphere"}   →  (1, the number of the point's leaf)

A document without a geometry has no key, whatever its other fields are. A line or a polygon has a key for each cell of
a covering, and the index then has the trait of an array at the path. A scan may therefore return a document several
times, also from cells larger than those of the query. A 2d index has the square of each legacy pair. Source: MongoDB's
documentation of 2dsphere and 2d indexes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final

from bson import Int64

from headrace.errors import CommandError
from headrace.store.indexes.field_keys import SortKey, field_keys
from headrace.store.indexes.index_keys import (
    CUT_BYTES,
    CUT_KEY,
    INVERTED,
    UNBOUNDED,
    UNDEFINED,
    Row,
    Traits,
    array_paths,
    descends,
    index_rows,
    too_many_keys,
)
from headrace.values.bson import MISSING, decode, to_string
from headrace.values.keystring.encoding import END, encode_value

SPHERE: Final = "2dsphere"
FLAT: Final = "2d"
GEO_KINDS: Final = (FLAT, SPHERE)
GRID: Final = {"bits": 26, "min": -180, "max": 180}
"""The options of a 2d index, with their defaults."""
_UNDEFINED_KEY: Final = b"\x0f"

Piece = tuple[bytes, Any]
"""The bytes that a field adds to a key, and the value."""


def geo_paths(pattern: dict[str, Any]) -> list[str]:
    """Return the fields of a key pattern that hold geometries."""
    return [path for path, kind in pattern.items() if kind == SPHERE]


def flat_path(pattern: dict[str, Any]) -> str | None:
    """Return the field of a key pattern that holds pairs of a 2d index; None if there is none."""
    return next((path for path, kind in pattern.items() if kind == FLAT), None)


class GeoKeyMaker:
    """Makes the keys of one 2dsphere or 2d index, with the interface of `KeyMaker`."""

    __slots__ = ("_keys", "_pattern", "_prefix", "_spec", "covers", "made_count")

    def __init__(
        self, number: int, spec: dict[str, Any], covers: Callable[[dict[str, Any]], bool] | None,
        sort_key: SortKey | None,
    ) -> None:  # fmt: skip
        self._prefix = number.to_bytes(4, "big")
        self._pattern: dict[str, Any] = spec["key"]
        self._spec = spec
        self._keys = field_keys(1, sort_key)
        self.covers = covers
        self.made_count = 0

    def keys(
        self, document: bytes, count_max: int = UNBOUNDED, decoded: dict[str, Any] | None = None
    ) -> tuple[list[bytes], Traits]:
        """Return keys as `KeyMaker.keys` does. Raises 16755 for an invalid geometry, 13026 and 13027 for a pair that a
        2d index cannot hold, 16804, 16746, and 201."""
        if decoded is None:
            decoded = decode(document)
        self.made_count = 1
        rows, traits = self._rows(decoded, count_max)
        self.made_count = max(len(rows), 1)
        if any(len(key) > CUT_BYTES + 4 for key in rows):
            traits |= {CUT_KEY}
            return list(dict.fromkeys(key[: CUT_BYTES + 4] for key in rows)), traits
        return list(rows), traits

    def rows(self, document: bytes) -> dict[bytes, Row]:
        """Return the keys of a raw document, each with its values, cells as numbers."""
        return self._rows(decode(document), UNBOUNDED)[0]

    def _rows(self, decoded: dict[str, Any], count_max: int) -> tuple[dict[bytes, Row], Traits]:
        if self.covers is not None and not self.covers(decoded):
            return {}, frozenset()
        traits: set[str] = set()
        fields: list[list[Piece]] = []
        has_geometry = False
        for path, kind in self._pattern.items():
            names = tuple(path.split("."))
            if kind in GEO_KINDS:
                pieces, is_point = _cells(decoded, names) if kind == SPHERE else _squares(decoded, names, self._spec)
                has_geometry = has_geometry or bool(pieces)
                traits |= array_paths(decoded, names[:-1]) if len(names) > 1 else set()
                if pieces and not is_point:
                    traits.add(path)
                fields.append(pieces or [(self._keys.missing, None)])
            else:
                traits |= array_paths(decoded, names)
                fields.append(self._values(decoded, path, kind))
        if not has_geometry:
            return {}, frozenset()
        rows: dict[bytes, Row] = {}
        for count, row in enumerate(product(*fields), 1):
            if count > count_max:
                raise too_many_keys()
            rows[self._prefix + b"".join([piece for piece, _ in row]) + END] = tuple([value for _, value in row])
        return rows, frozenset(traits)

    def _values(self, decoded: dict[str, Any], path: str, kind: Any) -> list[Piece]:
        made: dict[bytes, Any] = {}
        for (value,) in index_rows(decoded, {path: 1}):
            if value is MISSING:
                key = self._keys.missing
            else:
                key = _UNDEFINED_KEY if value is UNDEFINED else self._keys.of_value(value)
            shown = None if value is MISSING or value is UNDEFINED else value
            made[key.translate(INVERTED) if descends(kind) else key] = shown
        return list(made.items())


def _cells(decoded: dict[str, Any], names: tuple[str, ...]) -> tuple[list[Piece], bool]:
    """Return the pieces of keys for the geometries at a path, and whether they are a single point."""
    values = [value for value in _reached(decoded, names) if value is not None and value != []]
    if not values:
        return [], True
    from headrace.geo.cells import signed  # imported only for such an index
    from headrace.geo.covering import stored_cells
    from headrace.geo.geojson import BadGeometry, stored_shape

    numbers: dict[int, None] = {}
    is_point = len(values) == 1
    for value in values:
        try:
            shape = stored_shape(value)
            if shape.is_strict:
                raise BadGeometry("a polygon of the strict winding order cannot be indexed")
            if shape.pair is not None and not shape.points:
                raise BadGeometry(f"longitude/latitude is out of bounds, lng: {shape.pair[0]:g} lat: {shape.pair[1]:g}")
        except BadGeometry as error:
            raise CommandError(16755, f"Can't extract geo keys: {to_string(decoded)}  {error}") from error
        is_point = is_point and shape.pair is not None
        numbers |= dict.fromkeys(signed(number) for number in stored_cells(shape))
    return [(encode_value(Int64(number)), Int64(number)) for number in numbers], is_point


def _squares(decoded: dict[str, Any], names: tuple[str, ...], spec: dict[str, Any]) -> tuple[list[Piece], bool]:
    """Return the pieces of keys for the pairs at a path, and whether there is at most one pair."""
    values = [value for value in _reached(decoded, names) if type(value) in (dict, list) and value]
    if not values:
        return [], True
    from headrace.geo.plane import Grid  # imported only for such an index

    grid = Grid.of(spec)
    low, high = grid.low, grid.high
    numbers: dict[int, None] = {}
    count = 0
    for value in values:
        for pair in _pairs(decoded, value):
            if not grid.holds(pair):
                raise CommandError(
                    13027, f"point not in interval of [ {low:g}, {high:g} ] :: caused by :: {to_string(decoded)}"
                )
            numbers[grid.number(pair)] = None
            count += 1
    return [(encode_value(Int64(number)), Int64(number)) for number in numbers], count < 2


def _pairs(decoded: dict[str, Any], value: Any) -> Iterator[tuple[float, float]]:
    """Yield the value if it is a pair, otherwise the pairs in it."""
    from headrace.geo.geojson import NUMBERS, number

    first = next(iter(value.values())) if type(value) is dict else value[0]
    inner = value.values() if type(value) is dict else value
    for item in [value] if type(first) in NUMBERS else inner:
        if type(item) not in (dict, list):
            raise CommandError(16804, "location object expected, location array not in correct format")
        items = list(item.values()) if type(item) is dict else item
        if len(items) == 1:
            raise CommandError(13068, f"geo field only has 1 element :: caused by :: {to_string(decoded)}")
        if any(type(part) not in NUMBERS for part in items[:2]):
            raise CommandError(
                13026,
                f"geo values must be 'legacy coordinate pairs' for 2d indexes :: caused by :: {to_string(decoded)}",
            )
        if items:
            yield number(items[0]), number(items[1])


def _reached(value: Any, names: tuple[str, ...]) -> Iterator[Any]:
    """Yield the values at a path. Arrays before its end are entered."""
    if not names:
        yield value
    elif type(value) is dict:
        if names[0] in value:
            yield from _reached(value[names[0]], names[1:])
    elif type(value) is list:
        if names[0].isdigit() and int(names[0]) < len(value):
            yield from _reached(value[int(names[0])], names[1:])
        for item in value:
            if type(item) is dict:
                yield from _reached(item, names)
