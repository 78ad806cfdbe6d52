"""Commands that name a field twice, which a dict cannot hold: filters, updates and pipelines are read again, raw.

Rule: every condition of a filter counts, so `{a: X, a: Y}` is `{$and: [{a: X}, {a: Y}]}`. An update has every operator,
but no path twice (40). A sort has no key twice (7472500), a group has one `_id` (15948), and neither a projection
(31250) nor `$set` (40176) has a path twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from headrace.errors import CommandError
from headrace.values.bson import encode_in_order, iter_elements, to_string, value_of

_BYTES_MAX: Final = 1 << 18
"""Longer documents are not looked at, because every command of this length would take its time twice."""
_FILTERS: Final = frozenset({"filter", "q", "query", "validator"})
_UPDATES: Final = frozenset({"u", "update", "updateMods"})
_LOGICAL: Final = frozenset({"$and", "$nor", "$or"})
COMMANDS: Final = frozenset({
    "aggregate", "collMod", "count", "create", "distinct", "explain", "find", "findAndModify", "findandmodify",
})  # fmt: skip
"""The commands whose bodies have a filter, an update or a pipeline."""
_ARRAY: Final = 4
_OBJECT: Final = 3


def with_every_name(raw: bytes, decoded: dict[str, Any]) -> dict[str, Any]:
    """Return a decoded command or statement. If it has lost fields that are named twice, they are added again."""
    if len(raw) > _BYTES_MAX or len(encode_in_order(decoded)) == len(raw):
        return decoded
    return _command(raw, 0, decoded)


def update_with_every_name(raw: bytes, decoded: dict[str, Any]) -> dict[str, Any]:
    """Return a decoded update document. If an operator is named twice, it has the fields of both."""
    if len(raw) > _BYTES_MAX or len(encode_in_order(decoded)) == len(raw):
        return decoded
    return _update(raw, 0)


def _command(raw: bytes, start: int, decoded: dict[str, Any]) -> dict[str, Any]:
    made = dict(decoded)
    for name, kind, low, _ in _elements(raw, start):
        if name in _FILTERS and kind == _OBJECT:
            made[name] = _filter(raw, low)
        elif name in _UPDATES and kind == _OBJECT:
            made[name] = _update(raw, low)
        elif (name == "pipeline" or name in _UPDATES) and kind == _ARRAY:
            made[name] = _pipeline(raw, low)
        elif name == "sort" and kind == _OBJECT:
            _check_sort(raw, low)
        elif name == "projection" and kind == _OBJECT:
            _check_paths(raw, low, 31250, "Path collision at {0}")
        elif name == "explain" and kind == _OBJECT:
            made[name] = _command(raw, low, decoded[name])
    return made


def _elements(raw: bytes, start: int) -> Iterator[tuple[str, int, int, int]]:
    for kind, name, low, high in iter_elements(raw, start):
        yield name.decode(errors="replace"), kind, low, high


def _filter(raw: bytes, start: int) -> dict[str, Any]:
    conditions: list[tuple[str, Any]] = []
    for name, kind, low, high in _elements(raw, start):
        if name in _LOGICAL and kind == _ARRAY:
            conditions.append((name, [_part(raw, of, at, end) for _, of, at, end in _elements(raw, low)]))
        elif kind == _OBJECT and _is_operators(raw, low):
            conditions += _operators(raw, low, name)
        else:
            conditions.append((name, value_of(kind, raw, low, high)))
    return _joined(conditions)


def _part(raw: bytes, kind: int, low: int, high: int) -> Any:
    return _filter(raw, low) if kind == _OBJECT else value_of(kind, raw, low, high)


def _is_operators(raw: bytes, start: int) -> bool:
    name = next(_elements(raw, start), ("",))[0]
    return name.startswith("$") and name not in ("$id", "$ref")


def _operators(raw: bytes, start: int, path: str) -> list[tuple[str, Any]]:
    """The conditions on a path: one with the first of each operator, and one for each operator that is repeated."""
    first: dict[str, Any] = {}
    more: list[tuple[str, Any]] = []
    for name, kind, low, high in _elements(raw, start):
        if name == "$not" and kind == _OBJECT and len(inner := _operators(raw, low, path)) > 1:
            more.append(("$nor", [{"$and": [{of: value} for of, value in inner]}]))
            continue
        value = value_of(kind, raw, low, high)
        if name == "$elemMatch" and kind == _OBJECT and not _is_operators(raw, low):
            value = _filter(raw, low)
        if name in first:
            more.append((path, {name: value}))
        else:
            first[name] = value
    return [(path, first), *more] if first else more


def _joined(conditions: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(conditions)
    if len(made) == len(conditions):
        return made
    return {"$and": [{name: value} for name, value in conditions]}


def _update(raw: bytes, start: int) -> dict[str, Any]:
    """An update with the fields of an operator that is named twice. A replacement is not changed.

    A path that is named twice gets a second operator, so that the update is refused as a conflict (40).
    """
    made: dict[str, Any] = {}
    conflicts: list[tuple[str, str]] = []
    for name, kind, low, high in _elements(raw, start):
        value = value_of(kind, raw, low, high)
        if name.startswith("$") and kind == _OBJECT:
            fields = dict(made[name]) if type(made.get(name)) is dict else {}
            for path, of, at, end in _elements(raw, low):
                if path in fields:
                    conflicts.append(("$set" if name == "$unset" else "$unset", path))
                fields[path] = value_of(of, raw, at, end)
            value = fields
        made[name] = value
    for name, path in conflicts:
        made[name] = {**made.get(name, {}), path: ""}
    return made


def _pipeline(raw: bytes, start: int) -> list[Any]:
    stages = []
    for _, kind, low, high in _elements(raw, start):
        stage = value_of(kind, raw, low, high)
        if kind == _OBJECT:
            for name, of, at, _ in _elements(raw, low):
                if of == _OBJECT:
                    stage[name] = _stage(raw, at, name, stage[name])
        stages.append(stage)
    return stages


def _stage(raw: bytes, start: int, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    if name == "$match":
        return _filter(raw, start)
    if name == "$sort":
        _check_sort(raw, start)
    elif name == "$project":
        _check_paths(raw, start, 31250, "Invalid $project :: caused by :: Path collision at {0}")
    elif name in ("$addFields", "$set"):
        conflict = "specification contains two conflicting paths. Cannot specify both '{0}' and '{0}'"
        _check_paths(raw, start, 40176, f"Invalid {name} :: caused by :: {conflict}: {to_string(spec)}")
    elif name == "$group" and sum(field == "_id" for field, *_ in _elements(raw, start)) > 1:
        raise CommandError(15948, "a group's _id may only be specified once")
    made = dict(spec)
    for field, kind, low, _ in _elements(raw, start):
        if kind == _ARRAY and (name == "$facet" or (field == "pipeline" and name in ("$lookup", "$unionWith"))):
            made[field] = _pipeline(raw, low)
        elif kind == _OBJECT and (name, field) in (("$geoNear", "query"), ("$graphLookup", "restrictSearchWithMatch")):
            made[field] = _filter(raw, low)
    return made


def _check_sort(raw: bytes, start: int) -> None:
    _check_paths(raw, start, 7472500, "$sort key must not contain duplicate keys")


def _check_paths(raw: bytes, start: int, code: int, message: str) -> None:
    seen = set()
    for path, *_ in _elements(raw, start):
        if path in seen:
            raise CommandError(code, message.replace("{0}", path))
        seen.add(path)
