"""The document an upsert inserts when its filter matched nothing.

Rule: fields that the filter says are equal to one value are put in first, in the order of their paths: `{a: 1}`,
`$eq`, an `$in` or `$all` of one, under `$and` or an `$or` of one. Two such for a path, or for one inside another,
are error 54 (NotSingleValueField). Then the update is applied. A replacement takes nothing but `_id` from the filter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bson import ObjectId, Regex, Timestamp

from headrace.errors import CommandError
from headrace.query.update.update import Update
from headrace.values.order import hash_key


def check_upsert_filter(filter_document: dict[str, Any]) -> None:
    """To be called for every upsert whether or not the filter will match, after the update is parsed: error 224."""
    if _names_expr(filter_document):
        raise CommandError(224, "$expr is not allowed in the query predicate for an upsert")


def upsert_document(
    update: Update,
    filter_document: dict[str, Any],
    *,
    now_ms: int,
    timestamp: Timestamp,
    new_id: Callable[[], Any] = ObjectId,
) -> dict[str, Any]:
    """The new document, `_id` first, made by `new_id` if neither filter nor update gives one.

    Raises 54, 66, 53 for an `_id` that may not be one, 111, and what applying the update raises.
    """
    document = _from_filter(filter_document, only_id=update.kind == "replacement")
    new = update.apply(document, now_ms=now_ms, timestamp=timestamp, inserting=True).document
    if "_id" not in new:
        return {"_id": new_id(), **new}
    check_id(new["_id"])
    if next(iter(new)) == "_id":
        return new
    return {"_id": new["_id"], **{name: value for name, value in new.items() if name != "_id"}}


def check_id(value: Any) -> None:
    """Error 53 for an array or a regex as `_id`, 52 for an object with a dollar sign in a name."""
    if type(value) is list or type(value) is Regex:
        kind = "array" if type(value) is list else "regex"
        raise CommandError(53, f"The '_id' value cannot be of type {kind}")
    if type(value) is dict:
        for name in value:
            if name.startswith("$"):
                raise CommandError(
                    52, f"The dollar ($) prefixed field '{name}' in '_id.{name}' is not valid for storage."
                )


def _from_filter(filter_document: dict[str, Any], *, only_id: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, value in _equalities(filter_document) or ():
        if only_id and path != "_id":
            if path.startswith("_id."):
                raise CommandError(111, f"field at '_id' must be exactly specified, field at sub-path '{path}'found")
            continue
        _check_conflict(found, path)
        found[path] = value
    document: dict[str, Any] = {}
    for path in sorted(found, key=str.encode):
        *above, name = path.split(".")
        container = document
        for part in above:
            container = container.setdefault(part, {})
        container[name] = found[path]
    return document


def _check_conflict(found: dict[str, Any], path: str) -> None:
    if path in found:
        raise CommandError(54, f"cannot infer query fields to set, path '{path}' is matched twice")
    for other in found:
        if other.startswith(path + ".") or path.startswith(other + "."):
            raise CommandError(54, f"cannot infer query fields to set, both paths '{path}' and '{other}' are matched")


Equalities = list[tuple[str, Any]]


def _equalities(filter_document: dict[str, Any]) -> Equalities | None:
    """Path and value of every equality that must hold for the filter to hold; None if it can never hold."""
    found: Equalities = []
    for name, value in filter_document.items():
        if name == "$and":
            part = _all(value)
        elif name == "$or":
            part = _any(value)
        elif name == "$alwaysFalse":
            part = None
        elif name.startswith("$") or type(value) is Regex:
            continue
        elif type(value) is dict and next(iter(value), "").startswith("$") and "$ref" not in value:
            part = _conditions(name, value)
        else:
            part = [(name, value)]
        if part is None:
            return None
        found += part
    return found


def _all(filters: list[dict[str, Any]]) -> Equalities | None:
    found: Equalities = []
    for part in map(_equalities, filters):
        if part is None:
            return None
        found += part
    return found


def _any(filters: list[dict[str, Any]]) -> Equalities | None:
    """An $or says what its only branch says that can hold; with several, nothing."""
    possible = [part for part in map(_equalities, filters) if part is not None]
    if not possible:
        return None
    return possible[0] if len(possible) == 1 else []


def _conditions(path: str, conditions: dict[str, Any]) -> Equalities | None:
    """What conditions on one path say it is equal to; an $in or $all of nothing can never hold."""
    found: Equalities = []
    for name, value in conditions.items():
        if name == "$eq":
            found.append((path, value))
        elif name in ("$all", "$in"):
            if not value:
                return None
            values = value if name == "$all" else _distinct(value)
            if name == "$all" or len(values) == 1:
                found += [(path, item) for item in values if type(item) is not Regex and not _is_elem_match(item)]
    return found


def _distinct(values: list[Any]) -> list[Any]:
    """The values of an $in, of equal ones the first."""
    distinct: dict[Any, Any] = {}
    for value in values:
        distinct.setdefault(hash_key(value), value)
    return list(distinct.values())


def _is_elem_match(value: Any) -> bool:
    return type(value) is dict and next(iter(value), None) == "$elemMatch"


def _names_expr(filter_document: Any) -> bool:
    """Whether `$expr` stands at the top or under `$and`, `$or`, `$nor`."""
    for name, value in filter_document.items():
        if name == "$expr":
            return True
        parts = value if name in ("$and", "$nor", "$or") and type(value) is list else []
        if any(type(item) is dict and _names_expr(item) for item in parts):
            return True
    return False
