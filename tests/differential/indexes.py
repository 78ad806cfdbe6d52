"""Random indexes of every kind."""

from __future__ import annotations

from typing import Any, Final

from headrace.query.match import parse_filter
from tests.differential.documents import Values

COLLATIONS: Final[list[dict[str, Any]]] = [
    {"locale": "en", "strength": 2}, {"locale": "sv", "strength": 1}, {"locale": "en", "numericOrdering": True},
]  # fmt: skip
_PARTIAL: Final[list[Any]] = [
    {"$gt": 0}, {"$exists": True}, {"$in": [1, "a"]}, {"$lte": 2}, 1, {"$gte": "a"}, {"$type": "number"},
    {"$gte": 1, "$lt": 4}, {"$gt": 1}, {"$eq": None},
]  # fmt: skip
_WILDCARD: Final[list[dict[str, Any]]] = [
    {"key": {"$**": 1}}, {"key": {"$**": 1}}, {"key": {"$**": -1}}, {"key": {"a.$**": 1}}, {"key": {"b.$**": 1}},
    {"key": {"$**": 1}, "wildcardProjection": {"a": 1, "_id": 1}},
    {"key": {"$**": 1}, "wildcardProjection": {"a.b": 0}},
    {"key": {"$**": 1}, "wildcardProjection": {"b": 0}}, {"key": {"$**": 1}, "wildcardProjection": {"a": 1, "b.c": 1}},
    {"key": {"b": 1, "a.$**": 1}}, {"key": {"a.$**": -1, "b": 1}}, {"key": {"b": 1, "a.$**": 1, "c": -1}},
    {"key": {"c": -1, "$**": 1}, "wildcardProjection": {"c": 0}}, {"key": {"a": 1, "b.$**": 1}},
    {"key": {"a": 1, "$**": 1}, "wildcardProjection": {"a": 0, "_id": 0}},
]  # fmt: skip
_HASHED: Final[list[dict[str, Any]]] = [
    {"key": {"a": "hashed"}}, {"key": {"a.b": "hashed"}}, {"key": {"a": "hashed", "b": 1}},
    {"key": {"b": -1, "a": "hashed"}}, {"key": {"c": 1, "b": "hashed", "a": 1}},
]  # fmt: skip
_TEXT: Final[list[dict[str, Any]]] = [
    {"key": {"a": "text"}}, {"key": {"$**": "text"}}, {"key": {"b": 1, "a": "text"}},
    {"key": {"c": -1, "a.b": "text", "b": 1}, "weights": {"a": 5}}, {"key": {"b": "text"}, "default_language": "none"},
]  # fmt: skip


def random_index(values: Values, number: int) -> dict[str, Any]:
    """Return a specification for `createIndexes`; the server may refuse it for the documents that there are."""
    random = values.random
    if values.places is not None and values.places.random.random() < 0.6:
        return {**values.places.index(), "name": f"i{number}"}
    dice = random.random()
    if dice < 0.2:
        spec = dict(random.choice(_WILDCARD))
    elif dice < 0.3:
        spec = dict(random.choice(_HASHED))
    elif dice < 0.35:
        spec = dict(random.choice(_TEXT))
    else:
        spec = _ordered(values)
    if random.random() < 0.2:
        covered: dict[str, Any] = {random.choice(values.paths): random.choice(_PARTIAL)}
        if random.random() < 0.2:
            covered = {"$or": [covered, {random.choice(values.paths): random.choice(_PARTIAL)}]}
        spec["partialFilterExpression"] = covered
    if random.random() < values.collated and "text" not in spec["key"].values():
        spec["collation"] = random.choice(COLLATIONS)
    if random.random() < 0.06:
        spec["hidden"] = True
    return {**spec, "name": f"i{number}"}


def _ordered(values: Values) -> dict[str, Any]:
    random = values.random
    paths = list(dict.fromkeys(values.path() for _ in range(random.choice([1, 1, 2, 2, 3]))))
    if paths == ["_id"]:
        paths = ["a", "_id"]
    spec: dict[str, Any] = {"key": {path: random.choice([1, 1, -1]) for path in paths}}
    if random.random() < 0.15:
        spec["sparse"] = True
    if random.random() < 0.1:
        spec["unique"] = True
    if len(paths) == 1 and random.random() < 0.06:
        spec["expireAfterSeconds"] = 3600
    return spec


def holds_all(spec: dict[str, Any]) -> bool:
    """Whether a hint at an index is never refused."""
    special = {"2d", "2dsphere", "text"} & {str(kind) for kind in spec["key"].values()}
    return not ("partialFilterExpression" in spec or "$**" in str(spec["key"]) or special)


def in_sparse(spec: dict[str, Any], document: dict[str, Any]) -> bool:
    """Whether a sparse index has a key of a document, so that a hint leads to it."""
    if not spec.get("sparse"):
        return True
    return any(parse_filter({path: {"$exists": True}})(document) for path in spec["key"])
