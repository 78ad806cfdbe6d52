"""The pipeline of an embedded change stream: `$changeStream` with its options, and a stage for each kind of filter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

OPERATIONS: Final = frozenset({
    "create", "createIndexes", "delete", "drop", "dropDatabase", "dropIndexes", "insert", "invalidate", "modify",
    "rename", "replace", "update",
})  # fmt: skip
"""What events there are, and what a callback may be given for."""
EXPANDED: Final = frozenset({"create", "createIndexes", "dropIndexes", "modify"})
"""Those that come only with `showExpandedEvents`."""


def stages(
    options: Mapping[str, Any], operations: Iterable[str] | None, fields: Iterable[str] | None,
    filter: Mapping[str, Any] | None, pipeline: Iterable[Mapping[str, Any]],
) -> list[Mapping[str, Any]]:  # fmt: skip
    """The whole pipeline. Raises ValueError for an operation that there is not."""
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
        made.append({"$match": filter})
    return [{"$changeStream": options}, *made, *pipeline]


def check_operations(operations: Iterable[str]) -> set[str]:
    """The names of operations. Raises ValueError for one that there is not."""
    names = {operations} if isinstance(operations, str) else set(operations)
    if unknown := names - OPERATIONS:
        raise ValueError(f"no such operation: {', '.join(sorted(unknown))}; there are {', '.join(sorted(OPERATIONS))}")
    return names


def _touching(fields: list[str]) -> dict[str, Any]:
    """Every event but updates that touch none of the fields: not one itself, nor what is in it, nor what it is in."""
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
