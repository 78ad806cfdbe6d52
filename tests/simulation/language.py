"""A small evaluation of filters, updates, sorts and groups over Python dicts, which shares no code with the product.

It knows only what the simulator draws: integers, strings, null, dates, arrays of integers, places as pairs of whole
degrees, and one level of `d.e`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from datetime import datetime
from math import acos, cos, dist, radians, sin
from typing import Any, Final

Document = dict[str, Any]
MISSING: Final[Any] = object()
FOLD: Final = "$fold"
"""The one field of a filter that is used with `COLLATION`."""
COLLATION: Final = {"locale": "en", "strength": 2}
EARTH_METRES: Final = 6_378_100
"""The radius with which distances are computed."""


def value_at(document: Document, path: str) -> Any:
    """The value at a dotted path of documents, or MISSING."""
    value: Any = document
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            return MISSING
        value = value[part]
    return value


def _equal(value: Any, wanted: Any) -> bool:
    if wanted is None:
        return value is None or value is MISSING or (isinstance(value, list) and None in value)
    return wanted in value if isinstance(value, list) else bool(value == wanted)


def _compares(value: Any, wanted: Any, test: Callable[[Any, Any], bool]) -> bool:
    items = value if isinstance(value, list) else [value]
    kinds = (int, datetime, str)
    return any(any(isinstance(item, kind) and isinstance(wanted, kind) for kind in kinds) and test(item, wanted)
               for item in items)  # fmt: skip


def _is_within(value: Any, area: Document) -> bool:
    if not isinstance(value, list):
        return False
    if "$box" in area:
        (west, south), (east, north) = area["$box"]
        return bool(west < value[0] < east and south < value[1] < north)
    centre, radius = area["$centerSphere"]
    return _angle(value, centre) < radius


def _angle(place: list[int], other: list[int]) -> float:
    (x, y), (u, v) = map(radians, place), map(radians, other)
    return acos(min(1.0, sin(y) * sin(v) + cos(y) * cos(v) * cos(x - u)))


def distance(place: list[int], near: Any) -> float:
    """The distance of a place from that of a `$near`: in degrees, or from a point of GeoJSON in metres."""
    if isinstance(near, list):
        return dist(place, near)
    return EARTH_METRES * _angle(place, near["$geometry"]["coordinates"])


def _is_near(value: Any, near: Any) -> bool:
    return isinstance(value, list) and (isinstance(near, list) or distance(value, near) <= near["$maxDistance"])


OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$eq": _equal,
    "$exists": lambda value, wanted: (value is not MISSING) == wanted,
    "$geoWithin": _is_within,
    "$gt": lambda value, wanted: _compares(value, wanted, lambda a, b: a > b),
    "$gte": lambda value, wanted: _compares(value, wanted, lambda a, b: a >= b),
    "$in": lambda value, wanted: any(_equal(value, item) for item in wanted),
    "$lt": lambda value, wanted: _compares(value, wanted, lambda a, b: a < b),
    "$lte": lambda value, wanted: _compares(value, wanted, lambda a, b: a <= b),
    "$near": _is_near,
    "$ne": lambda value, wanted: not _equal(value, wanted),
}


def folded(value: Any) -> Any:
    """A value with all strings in lower case, which `COLLATION` compares alike."""
    if isinstance(value, dict):
        return {name: folded(inner) for name, inner in value.items()}
    return value.lower() if isinstance(value, str) else value


def query_of(op: Document) -> tuple[Document, Document]:
    """The filter of an operation as it is sent, and the field for its collation, if it has one."""
    condition = op["filter"]
    return (condition[FOLD], {"collation": COLLATION}) if FOLD in condition else (condition, {})


def matches(document: Document, condition: Document) -> bool:
    """Whether a document matches a filter, or one under `FOLD` with the collation that ignores case."""
    for path, wanted in condition.items():
        if path == FOLD:
            return matches(folded(document), folded(wanted))
        if path == "$or":
            if not any(matches(document, branch) for branch in wanted):
                return False
            continue
        value = value_at(document, path)
        if isinstance(wanted, dict) and wanted and next(iter(wanted)).startswith("$"):
            if not all(OPERATORS[name](value, argument) for name, argument in wanted.items()):
                return False
        elif not _equal(value, wanted):
            return False
    return True


def _set(document: Document, path: str, value: Any) -> None:
    first, _, rest = path.partition(".")
    if rest:
        _set(document.setdefault(first, {}), rest, value)
    else:
        document[first] = value


def updated(document: Document, change: Document) -> Document:
    """The document after an update or a replacement."""
    if not change or not next(iter(change)).startswith("$"):
        return {"_id": document["_id"], **change} if "_id" in document else dict(change)
    new = copy.deepcopy(document)
    for operator, fields in change.items():
        for path, value in fields.items():
            there = value_at(new, path)
            if operator == "$set":
                _set(new, path, value)
            elif operator == "$inc":
                _set(new, path, value if there is MISSING else there + value)
            elif operator == "$push":
                _set(new, path, [value] if there is MISSING else [*there, value])
            elif operator == "$unset" and there is not MISSING:
                first, _, rest = path.partition(".")
                del (new[first] if rest else new)[rest or first]
    return new


def changes(document: Document, change: Document) -> bool:
    """Whether an update changes a document: a replacement without an `_id` always does, as on MongoDB."""
    return not next(iter(change), "").startswith("$") or updated(document, change) != document


def upserted(condition: Document, change: Document) -> Document:
    """The document that an upsert inserts, without an `_id` if the filter has none."""
    equal = {path: value for path, value in condition.items() if not isinstance(value, dict) and path != "$or"}
    if change and next(iter(change)).startswith("$"):
        base: Document = {}
        for path, value in equal.items():
            _set(base, path, value)
        return updated(base, change)
    return updated({"_id": equal["_id"]} if "_id" in equal else {}, change)


def order_key(value: Any) -> tuple[int, Any]:
    """The key by which a scalar sorts; missing sorts as null."""
    if value is MISSING or value is None:
        return 0, 0
    return (1, value) if isinstance(value, int) else (2, value) if isinstance(value, str) else (3, value)


def ordered(documents: Iterable[Document], sort: dict[str, int]) -> list[Document]:
    """The documents in the order of a sort."""
    made = list(documents)
    for path, direction in reversed(list(sort.items())):
        made.sort(key=lambda document: order_key(value_at(document, path)), reverse=direction < 0)
    return made


def projected(document: Document, fields: dict[str, int] | None) -> Document:
    """What an inclusive projection leaves of a document."""
    if fields is None:
        return document
    names = [name for name, wanted in fields.items() if wanted]
    shown = {name: document[name] for name in names if name in document}
    return shown if fields.get("_id") == 0 else {"_id": document["_id"], **shown}


def distinct(documents: Iterable[Document], path: str) -> list[Any]:
    """The distinct values of a path, arrays unwound, in order."""
    found: list[Any] = []
    for document in documents:
        value = value_at(document, path)
        for item in [] if value is MISSING else value if isinstance(value, list) else [value]:
            if item not in found:
                found.append(item)
    return sorted(found, key=order_key)


def grouped(documents: Iterable[Document], path: str) -> list[Document]:
    """`{$group: {_id: "$path", count: {$sum: 1}, n: {$sum: "$n"}}}`, sorted by `_id`."""
    groups: dict[Any, Document] = {}
    for document in documents:
        value = value_at(document, path)
        key = None if value is MISSING else value
        group = groups.setdefault(key, {"_id": key, "count": 0, "n": 0})
        group["count"] += 1
        group["n"] += document.get("n", 0) if isinstance(document.get("n", 0), int) else 0
    return sorted(groups.values(), key=lambda group: order_key(group["_id"]))


def frozen(value: Any) -> Any:
    """A value that is equal and hashes alike for equal documents, whatever the order of their fields."""
    if isinstance(value, dict):
        return tuple(sorted((name, frozen(inner)) for name, inner in value.items()))
    if isinstance(value, list):
        return ("[]", *map(frozen, value))
    return (type(value).__name__ if value is None or isinstance(value, bool | str) else "", str(value))
