"""Recorded cases run with an index on every field that their documents have: an index never changes a result.

`IndexedConnection` is between the runner of the recordings and a store. It adds the indexes as soon as a command has
made a collection.

Rules for what is not compared:
- A case that creates, drops or lists indexes, explains, or lists the catalog is left out (`is_about_indexes`), as is
  the family `oplog`. So are entries of the oplog, but for those of single updates (`without_entries`), and how many
  indexes a dropped collection had.
- MongoDB returns documents in the order of the index that it reads: what a command returns without a sort is compared
  without its order (`without_order`).
- An error that the value of one document causes does not come where an index does not lead to that document
  (`without_errors_of_documents`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

FIELD_COUNT_MAX: Final = 63
"""MongoDB's limit of 64 indexes, less that of _id."""

_ABOUT_INDEXES: Final = {
    "collMod", "createIndexes", "dropIndexes", "explain", "listCollections", "listDatabases", "listIndexes",
}  # fmt: skip
_MAKES_COLLECTIONS: Final = {"commitTransaction", "create", "findAndModify", "insert", "renameCollection", "update"}

Command = Callable[[str, dict[str, Any]], dict[str, Any]]
Specify = Callable[[list[str]], list[dict[str, Any]]]


def is_about_indexes(case: dict[str, Any]) -> bool:
    """Whether a case shows what indexes there are, so that more of them would show."""
    runs = [step["run"] for step in case["steps"] if "run" in step]
    return any(next(iter(run)) in _ABOUT_INDEXES for run in runs) or case["id"].startswith("oplog/")


def fields_of(case: dict[str, Any]) -> list[str]:
    """The paths of all documents of a case: those that it inserts, and what its filters and updates name."""
    paths: dict[str, None] = {}
    for step in case["steps"]:
        run = step.get("run", {})
        for document in run.get("documents", []):
            paths.update(dict.fromkeys(_paths(document)))
        for statement in [*run.get("updates", []), run]:
            for name in ("q", "query", "u", "update"):
                paths.update(dict.fromkeys(_paths(statement.get(name))))
    return list(paths)[:FIELD_COUNT_MAX]


def _paths(value: Any, prefix: str = "") -> Iterator[str]:
    """The dotted paths of all fields, through arrays and operators, but for `_id` itself."""
    if isinstance(value, list):
        for element in value:
            yield from _paths(element, prefix)
    elif isinstance(value, dict):
        for name, inner in value.items():
            path = prefix if name.startswith("$") else f"{prefix}.{name}" if prefix else name
            if not _can_be_indexed(path):
                continue
            if path != prefix and path != "_id":
                yield path
            yield from _paths(inner, path)


def _can_be_indexed(path: str) -> bool:
    return not path or (all(step and step[0] != "$" for step in path.split(".")) and "\0" not in path)


def each_field(paths: list[str]) -> list[dict[str, Any]]:
    """An ascending index for each path."""
    return [{"key": {path: 1}, "name": str(number)} for number, path in enumerate(paths)]


def all_fields(paths: list[str]) -> list[dict[str, Any]]:
    """A wildcard index."""
    return [{"key": {"$**": 1}, "name": "all"}]


class IndexedConnection:
    """Passes commands on, and adds indexes to what they make; `begin` is called ahead of each case."""

    def __init__(self, command: Command, specify: Specify) -> None:
        self._command, self._specify = command, specify
        self._indexes: list[dict[str, Any]] = []
        self.index_count = 0

    def begin(self, case: dict[str, Any]) -> None:
        """Take the indexes for a case."""
        self._indexes = self._specify(fields_of(case))

    def command(self, database: str, command: dict[str, Any]) -> dict[str, Any]:
        """The reply, also to a command that failed."""
        name = next(iter(command))
        reply = self._command(database, command)
        is_statement = command.get("autocommit") is False and name != "commitTransaction"
        if name in _MAKES_COLLECTIONS and not is_statement and reply["ok"] == 1 and reply.get("n") != 0:
            for indexed in ("hr", "hr2"):
                self._add_indexes(indexed)
        return reply

    def _add_indexes(self, database: str) -> None:
        listed = self._command(database, {"listCollections": 1, "nameOnly": True})
        for collection in listed["cursor"]["firstBatch"]:
            if collection["type"] == "collection" and self._indexes:
                reply = self._command(database, {"createIndexes": collection["name"], "indexes": self._indexes})
                if reply["ok"] == 1:
                    self.index_count += reply["numIndexesAfter"] - reply["numIndexesBefore"]


def without_order(results: list[Any]) -> list[Any]:
    """The results of a case, with the documents of each batch sorted by their text."""
    return [_sorted_batch(result) for result in results]


def _sorted_batch(result: Any) -> Any:
    cursor = result.get("cursor") if isinstance(result, dict) else None
    if not isinstance(cursor, dict) or "firstBatch" not in cursor:
        return result
    return {**result, "cursor": {**cursor, "firstBatch": sorted(cursor["firstBatch"], key=json.dumps)}}


def without_entries(case: dict[str, Any]) -> list[Any]:
    """What is expected of a case, with anything in place of the oplog's entries."""
    runs = [step.get("run", {}) for step in case["steps"]]
    return [
        {"#later": True} if run.get("find") == "oplog.rs" and not case["id"].startswith("updates/") else result
        for run, result in zip(runs, case.pop("expect"))
    ]


def without_errors_of_documents(expected: list[Any]) -> list[Any]:
    """What is expected, with anything in place of an error that came while documents were read."""
    return [{"#later": True} if _is_of_document(result) else result for result in expected]


def _is_of_document(result: Any) -> bool:
    error = result.get("error") if isinstance(result, dict) else None
    return isinstance(error, dict) and str(error.get("errmsg", "")).startswith("Executor error")
