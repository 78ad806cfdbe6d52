"""Places: a field `at` of geometries, indexes on it, conditions, and questions by distance."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from headrace.errors import CommandError
from headrace.geo.near import parse_near
from tests.differential.documents import raw
from tests.differential.model import Difference
from tests.differential.paths import Paths

Document = dict[str, Any]
SHARE = 0.15
"""The share of cases with places."""


class Places:
    """A source of geometries for one kind of index, near each other, so that they meet."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._kind = random.choice(["2d", "2dsphere"])
        self._spread = random.choice([3, 170])
        self._has_points_only = random.random() < 0.5

    def _pair(self) -> list[float]:
        random, spread = self.random, self._spread
        return [random.choice([random.randrange(-3, 4), random.uniform(-spread, spread)]), random.uniform(-3, 3)]

    def _shape(self) -> Document:
        (x, y), size = self._pair(), self.random.choice([0.5, 2, 9])
        corners = [[x, y], [x + size, y], [x + size, y + size], [x, y]]
        kind = self.random.choice(["Point", "Point", "LineString", "Polygon", "MultiPoint"])
        coordinates: Any = {"Point": [x, y], "LineString": corners[:2], "Polygon": [corners], "MultiPoint": corners[:2]}
        return {"type": kind, "coordinates": coordinates[kind]}

    def value(self) -> Any:
        """Return what a document has at `at`."""
        dice = self.random.random()
        if dice < 0.1:
            return self.random.choice([None, []])
        if dice < 0.5:
            return self._pair()
        if self._kind == "2dsphere":
            return {"type": "Point", "coordinates": self._pair()} if self._has_points_only else self._shape()
        x, y = self._pair()
        return [self._pair() for _ in range(self.random.choice([1, 2]))] if dice < 0.7 else {"x": x, "y": y}

    def index(self) -> Document:
        """Return the specification of an index, but for its name."""
        if self._kind == "2d":
            options = self.random.choice([{}, {"bits": self.random.choice([1, 5, 32])}, {"min": -200, "max": 300}])
            return {"key": self.random.choice([{"at": "2d"}, {"at": "2d", "a": 1}]), **options}
        return {
            "key": self.random.choice([{"at": "2dsphere"}, {"at": "2dsphere", "b": -1}, {"a": 1, "at": "2dsphere"}])
        }

    def condition(self) -> Document:
        """Return a condition on `at` for a filter."""
        (x, y), size = self._pair(), self.random.choice([0.5, 2, 30])
        flat = [
            {"$box": [[x, y], [x + size, y + size]]}, {"$center": [[x, y], size]},
            {"$polygon": [[x, y], [x + size, y], [x, y + size]]},
        ]  # fmt: skip
        ring = [[x, y], [x + size, y], [x + size, y + size], [x, y]]
        area = {"type": "Polygon", "coordinates": [ring]}
        sphere = [{"$centerSphere": [[x, y], size / 50]}, {"$geometry": area}]
        if self._kind == "2dsphere" and self.random.random() < 0.4:
            return {"$geoIntersects": {"$geometry": self._shape()}}
        return {"$geoWithin": self.random.choice([*flat, *sphere])}

    def near(self) -> Document:
        """Return a `$near`."""
        pair, units = self._pair(), 1.0
        made: Document = {"$nearSphere": pair}
        if self._kind == "2d" and self.random.random() < 0.6:
            made, units = {"$near": pair}, 60.0
        if self.random.random() < 0.4:
            made["$maxDistance"] = self.random.choice([0.02, 0.1, 1, 3]) * units
        if self.random.random() < 0.2:
            made["$minDistance"] = self.random.choice([0.01, 0.1]) * units
        return made


def check_near(paths: Paths, matched: list[Document], asked: Document, hints: list[Any]) -> None:
    """Raise `Difference` unless the matches that have a place in the range come in the order of their distance."""
    find = parse_near("at", asked["near"]).finder()
    there = [(found.distance, document) for document in matched if (found := find(document)) is not None]
    limit = asked.get("limit") or len(there)
    distances = sorted(distance for distance, _ in there)[:limit]
    body = {"find": "c", "filter": {"$and": [asked["filter"], {"at": asked["near"]}]}, "limit": asked.get("limit", 0)}
    for hint in hints:
        try:
            rows = paths.rows(body if hint is None else {**body, "hint": hint}, asked.get("batch"))
        except CommandError as error:
            if error.code != 291 and (hint is None or error.code != 2):  # no index that will do, or a hidden one
                raise Difference(f"error {error.code}: {error}") from error
            continue
        if not Counter(map(raw, rows)) <= Counter(raw(document) for _, document in there):
            raise Difference(f"wrong documents {rows} of {there}")
        got = [found.distance for row in rows if (found := find(row)) is not None]
        if got != distances:
            raise Difference(f"distances {got} instead of {distances}")
