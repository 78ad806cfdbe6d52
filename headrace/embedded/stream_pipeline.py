"""The pipeline of an embedded change stream: `$changeStream` with its options, and a stage for each kind of filter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from headrace.keywords import nearest

OPERATIONS: Final = frozenset({
    "create", "createIndexes", "delete", "drop", "dropDatabase", "dropIndexes", "insert", "invalidate", "modify",
    "rename", "replace", "update",
})  # fmt: skip
"""The types of events that a callback may name."""
EXPANDED: Final = frozenset({"create", "createIndexes", "dropIndexes", "modify"})
"""The types of events that come only with `showExpandedEvents`."""

_FIELDS: Final[dict[str, frozenset[str]]] = {
    "_id": frozenset(),
    "clusterTime": frozenset(),
    "collectionUUID": frozenset(),
    "documentKey": frozenset(),
    "fullDocument": frozenset(),
    "fullDocumentBeforeChange": frozenset(),
    "lsid": frozenset(),
    "ns": frozenset({"coll", "db"}),
    "nsType": frozenset(),
    "operationDescription": frozenset(),
    "operationType": frozenset(),
    "splitEvent": frozenset(),
    "stateBeforeChange": frozenset(),
    "to": frozenset({"coll", "db"}),
    "txnNumber": frozenset(),
    "updateDescription": frozenset({"disambiguatedPaths", "removedFields", "truncatedArrays", "updatedFields"}),
    "wallTime": frozenset(),
}
"""The fields of events, each with its nested fields; an empty set allows any nested field."""
_OTHER_NAMES: Final = {"coll": "ns.coll", "collection": "ns.coll", "database": "ns.db", "db": "ns.db"}


def stages(
    options: Mapping[str, Any], operations: Iterable[str] | None, fields: Iterable[str] | None,
    filter: Mapping[str, Any] | None, pipeline: Iterable[Mapping[str, Any]],
) -> list[Mapping[str, Any]]:  # fmt: skip
    """Return the whole pipeline. Raises ValueError for an unknown operation, or an unknown event field in `filter`."""
    made: list[Mapping[str, Any]] = []
    options = dict(options)
    if operations is not None:
        names = sorted(check_operations(operations))
        if EXPANDED.intersection(names):
            options["showExpandedEvents"] = True
        made.append({"$match": {"operationType": {"$in": names}}})
    if fields is not None:
        made.append({"$match": _touching([fields] if isinstance(fields, str) else list(fields))})
    if filter is not None:
        _check_fields(filter)
        made.append({"$match": filter})
    return [{"$changeStream": options}, *made, *pipeline]


def check_operations(operations: Iterable[str]) -> set[str]:
    """Return the names of operations. Raises ValueError for an unknown one."""
    names = {operations} if isinstance(operations, str) else set(operations)
    if unknown := names - OPERATIONS:
        raise ValueError(f"no such operation: {', '.join(sorted(unknown))}; there are {', '.join(sorted(OPERATIONS))}")
    return names


def _check_fields(filter: Any) -> None:
    """Raise ValueError for a field that no event has. The engine reports a filter that is no document."""
    for name, value in filter.items() if isinstance(filter, Mapping) else ():
        if name in ("$and", "$nor", "$or") and isinstance(value, list | tuple):
            for branch in value:
                _check_fields(branch)
        elif isinstance(name, str) and not name.startswith("$"):
            _check_field(name)


def _check_field(name: str) -> None:
    first, *rest = name.split(".")[:2]
    if first not in _FIELDS:
        use = _OTHER_NAMES.get(first.lower()) or nearest(first, _FIELDS)
        hint = f"use {use!r}" if use else f"a field of the document is {f'fullDocument.{name}'!r}"
        raise ValueError(f"a change event has no field {name!r}: {hint}")
    inner = _FIELDS[first]
    if rest and inner and rest[0] not in inner:
        use = nearest(rest[0], inner)
        hint = " or ".join(repr(f"{first}.{known}") for known in ([use] if use else sorted(inner)))
        raise ValueError(f"a change event has no field {f'{first}.{rest[0]}'!r}: use {hint}")


def _touching(fields: list[str]) -> dict[str, Any]:
    """Return a filter that drops updates which change none of the fields, nor a part or a parent of one."""
    patterns = []
    for field in fields:
        names = field.split(".")
        above = [re.escape(".".join(names[:count])) for count in range(1, len(names))]
        patterns += [rf"{re.escape(field)}(\..*)?", *above]
    expression = f"^({'|'.join(patterns)})$"
    description = "$updateDescription."
    paths = {
        "$concatArrays": [
            {"$map": {"input": {"$objectToArray": f"{description}updatedFields"}, "in": "$$this.k"}},
            {"$ifNull": [f"{description}removedFields", []]},
            {"$map": {"input": {"$ifNull": [f"{description}truncatedArrays", []]}, "in": "$$this.field"}},
        ]
    }
    touched = {"$map": {"input": paths, "in": {"$regexMatch": {"input": "$$this", "regex": expression}}}}
    return {"$or": [{"operationType": {"$ne": "update"}}, {"$expr": {"$anyElementTrue": [touched]}}]}
