"""Changes of collections, indexes and parameters as events of the audit log: actions, details and results.

Source: MongoDB's "mongo Schema Audit Messages".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from headrace.store.catalog_changes import ID_INDEX

AuditEvent = tuple[str, dict[str, Any], int]
"""The action, its details, and its error code (0: no error)."""

ABORTED: Final = 276
NOT_THERE: Final = 26

_ACTIONS: Final = {"collMod": "collMod", "create": "createCollection", "drop": "dropCollection"}
_BUILD_STATES: Final = {
    "abortIndexBuild": ("IndexBuildAborted",),
    "commitIndexBuild": ("IndexBuildSucceeded",),
    "create": ("IndexBuildStarted", "IndexBuildSucceeded"),
    "createIndexes": ("IndexBuildStarted", "IndexBuildSucceeded"),
    "startIndexBuild": ("IndexBuildStarted",),
}


def events(database: str, command: dict[str, Any], databases: set[str]) -> Iterator[AuditEvent]:
    """Yield the events of one change. `databases`: the existing databases, updated by this function."""
    name, value = next(iter(command.items()))
    namespace = f"{database}.{value}"
    if name in ("create", "renameCollection"):
        into = database if name == "create" else str(command["to"]).partition(".")[0]
        if into not in databases:
            databases.add(into)
            yield "createDatabase", {"ns": into}, 0
    if name in _ACTIONS:
        viewed = {"viewOn": f"{database}.{command['viewOn']}"} if "viewOn" in command else {}
        yield _ACTIONS[name], {"ns": namespace, **viewed}, 0
        if name == "create" and not viewed:
            yield from _index_events(name, namespace, command.get("idIndex", ID_INDEX))
    elif name == "createIndexes":
        yield from _index_events(name, namespace, command)
    elif name in _BUILD_STATES:
        for spec in command["indexes"]:
            yield from _index_events(name, namespace, spec)
    elif name == "dropIndexes":
        yield "dropIndex", {"ns": namespace, "indexName": command["index"]}, 0
    elif name == "dropDatabase":
        databases.discard(database)
        yield "dropDatabase", {"ns": database}, 0
    elif name == "renameCollection":
        if "dropTarget" in command:
            yield "dropCollection", {"ns": command["to"]}, 0
        yield "renameCollection", {"old": value, "new": command["to"]}, 0
    elif name == "setClusterParameter":
        details = {"originalClusterServerParameter": value, "updatedClusterServerParameter": command["to"]}
        yield "setClusterParameter", details, 0
        yield "updateCachedClusterServerParameter", details, 0


def _index_events(command: str, namespace: str, spec: dict[str, Any]) -> Iterator[AuditEvent]:
    """Yield events with the key and options of an index, but without a partial index's filter, which has values."""
    shown = {
        name: spec[name] for name in ("v", "key", "name", "unique", "sparse", "expireAfterSeconds") if name in spec
    }
    for state in _BUILD_STATES[command]:
        details = {"ns": namespace, "indexName": spec["name"], "indexSpec": shown, "indexBuildState": state}
        yield "createIndex", details, ABORTED if command == "abortIndexBuild" else 0
