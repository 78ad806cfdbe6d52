"""The stable API: the fields `apiVersion`, `apiStrict` and `apiDeprecationErrors` of a command.

The only version is "1". Nothing in it is deprecated, so `apiDeprecationErrors` changes nothing. For a strict client a
part of a command that is not in the version is error 323 wherever it is present, unless its value is null.

Source: MongoDB's manual on the stable API, the sections "Stable API" of its commands, and its lists of commands and
stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.running_command import running_command
from headrace.values.bson import decode

IN_VERSION_1: Final = frozenset({
    "abortTransaction", "aggregate", "authenticate", "bulkWrite", "collMod", "commitTransaction", "count", "create",
    "createIndexes", "delete", "drop", "dropDatabase", "dropIndexes", "endSessions", "explain", "find",
    "findAndModify", "findandmodify", "getMore", "hello", "insert", "killCursors", "listCollections",
    "listDatabases", "listIndexes", "ping", "refreshSessions", "renameCollection", "saslContinue", "saslStart",
    "update",
})  # fmt: skip


def is_strict(body: dict[str, Any]) -> bool:
    """Whether the client allows only the stable API."""
    return body.get("apiStrict") is True


def check(command: str, request: Request) -> None:
    """Raise 322 for a version other than 1, 323 for parts of a command that `apiStrict` forbids.

    `command`: the command's name, also if the request uses an alias.
    """
    body = request.body
    version = body.get("apiVersion")
    if version is None:
        if "apiStrict" in body or "apiDeprecationErrors" in body:
            raise CommandError(4886600, "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion")
        return
    if version != "1":
        raise CommandError(322, 'API version must be "1"')
    if body.get("apiStrict"):
        check_parts(command, request)


def check_name(request: Request) -> None:
    """Raise 323 for a command that is not in the strict version 1, whatever its fields are."""
    if request.body.get("apiVersion") == "1" and request.name not in IN_VERSION_1:
        raise CommandError(
            323,
            f"Provided apiStrict:true, but the command {request.name} is not in API Version 1. Information on "
            "supported commands and migrations in API Version 1 can be found at "
            "https://dochub.mongodb.org/core/manual-versioned-api",
        )


# The parts of commands that a client of the strict API may not use: fields, stages, kinds of indexes.


R = TypeVar("R")
_WRITING: Final = frozenset({"bypassEmptyTsReplacement", "collectionUUID", "encryptionInformation"})
FIELDS: Final[dict[str, frozenset[str]]] = {
    "aggregate": frozenset({
        "collectionUUID", "encryptionInformation", "explain", "isMapReduceCommand", "runtimeConstants", "sampleId",
    }),
    "bulkWrite": frozenset({"bypassEmptyTsReplacement"}),
    "bulkWrite.nsInfo": frozenset({"collectionUUID", "encryptionInformation"}),
    "bulkWrite.ops": frozenset({"sort"}),
    "collMod": frozenset({
        "changeStreamPreAndPostImages", "collectionUUID", "dryRun", "recordIdsReplicated",
        "timeseriesBucketsMayHaveMixedSchemaData",
    }),
    "collMod.index": frozenset({"forceNonUnique", "prepareUnique", "unique"}),
    "count": frozenset({"collectionUUID", "encryptionInformation", "fields", "mirrored", "sampleId"}),
    "create": frozenset({
        "autoIndexId", "capped", "changeStreamPreAndPostImages", "flags", "indexOptionDefaults", "max",
        "recordIdsReplicated", "size", "storageEngine",
    }),
    "createIndexes": frozenset({"collectionUUID", "ignoreUnknownIndexOptions", "returnOnStart"}),
    "createIndexes.indexes": frozenset({
        "background", "bucketSize", "dropDups", "originalSpec", "prepareUnique", "sparse", "storageEngine",
    }),
    "delete": _WRITING | {"runtimeConstants"},
    "delete.deletes": frozenset({"sampleId"}),
    "drop": frozenset({"collectionUUID"}),
    "dropIndexes": frozenset({"collectionUUID"}),
    "find": frozenset({
        "awaitData", "collectionUUID", "encryptionInformation", "max", "min", "mirrored", "noCursorTimeout",
        "oplogReplay", "readOnce", "returnKey", "runtimeConstants", "sampleId", "showRecordId", "tailable", "term",
    }),
    "findAndModify": _WRITING | {"sampleId"},
    "getMore": frozenset({"lastKnownCommittedOpTime", "term"}),
    "insert": _WRITING,
    "listCollections": frozenset({"includePendingDrops"}),
    "listIndexes": frozenset({"includeBuildUUIDs", "includeIndexBuildInfo"}),
    "update": _WRITING,
    "update.updates": frozenset({"sampleId", "sort"}),
}  # fmt: skip
"""The fields outside version 1, by command, or by `command.field` for the elements of that field."""
STAGES: Final = frozenset({
    "$changeStreamSplitLargeEvent", "$currentOp", "$indexStats", "$listLocalSessions", "$listSampledQueries",
    "$listClusterCatalog", "$listSearchIndexes", "$listSessions", "$planCacheStats", "$querySettings", "$queryStats",
    "$search", "$searchMeta", "$shardedDataDistribution", "$vectorSearch",
})  # fmt: skip
"""The stages outside version 1."""
_OF_COLL_STATS: Final = frozenset({"latencyStats", "queryExecStats", "storageStats"})
_NOTHING: Final[frozenset[str]] = frozenset()


def check_parts(command: str, request: Request) -> None:
    """Raise 323 for parts of a command that are not in version 1. `command`: its name, never an alias."""
    body = request.body
    _check_names(command, body)
    for path in _STATEMENTS.get(command, ()):
        for statement in _statements(request, path.partition(".")[2]):
            _check_names(path, statement)
            if path == "createIndexes.indexes":
                key = statement.get("key")
                if type(key) is dict and "text" in key.values():
                    raise CommandError(323, "The index type 'text' is not allowed with apiStrict:true.")
    check_stages(body.get("pipeline"))
    inner = body.get("explain")
    if command == "explain" and type(inner) is dict and inner:
        name = next(iter(inner))
        asked = Request(name, request.db, b"", {}, request.client, inner)
        check_parts("findAndModify" if name == "findandmodify" else name, asked)


def strictly(run: Callable[[CommandContext, Request], R]) -> Callable[[CommandContext, Request], R]:
    """Make a command run under the strict stable API: the planner uses no sparse index."""

    def run_strictly(context: CommandContext, request: Request) -> R:
        command = running_command()
        if command is None:
            return run(context, request)
        command.is_strict = True
        try:
            return run(context, request)
        finally:
            command.is_strict = False

    return run_strictly


def check_stages(pipeline: Any) -> None:
    """Raise 323 for a stage outside version 1, also inside other stages. Ignore a value that is no pipeline."""
    for stage in pipeline if type(pipeline) is list else ():
        for name, spec in stage.items() if type(stage) is dict else ():
            if name in STAGES:
                raise CommandError(323, f"{name} is not allowed with 'apiStrict: true' in API Version 1")
            options = spec if type(spec) is dict else {}
            if name == "$collStats" and not _OF_COLL_STATS.isdisjoint(options):
                raise CommandError(323, "only the 'count' option to $collStats is supported in API Version 1")
            for inner in options.values() if name == "$facet" else (options.get("pipeline"),):
                check_stages(inner)


_STATEMENTS: Final = {
    command: [path for path in FIELDS if path.startswith(f"{command}.")]
    for command in {path.partition(".")[0] for path in FIELDS if "." in path}
}


def _statements(request: Request, field: str) -> Iterator[dict[str, Any]]:
    """Yield a field's documents: a single one, the elements of an array, and those of a kind-1 section."""
    value = request.body.get(field)
    for item in value if type(value) is list else [value]:
        if type(item) is dict:
            yield item
    for raw in request.sequences.get(field, ()):
        yield decode(raw)


def _check_names(path: str, document: dict[str, Any]) -> None:
    for name in FIELDS.get(path, _NOTHING).intersection(document):
        if document[name] is not None and (name, document[name]) != ("capped", False):
            raise CommandError(323, f"BSON field '{path}.{name}' is not allowed with apiStrict:true.")
