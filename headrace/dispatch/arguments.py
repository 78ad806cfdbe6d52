"""The fields a request may have: any other is error 40415, so that a misspelt option is told and not passed over.

Rule: what begins with a dollar sign is the drivers' own and let pass. A command that is not in the table looks at
its fields itself, or takes any.
Source: the reference of each command; MongoDB's generic command arguments.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from headrace import limits
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.query.expressions.numbers import NUMBERS, to_long, truthy
from headrace.values.bson import MISSING, find_element, iter_elements, type_name

GENERIC: Final = frozenset({
    "apiDeprecationErrors", "apiStrict", "apiVersion", "autocommit", "clientOperationKey", "comment", "help", "lsid",
    "maxTimeMS", "maxTimeMSOpOnly", "rawData", "readConcern", "startTransaction", "stmtId", "stmtIds",
    "txnNumber", "txnRetryCounter", "writeConcern",
})  # fmt: skip

_BY_COMMAND: Final = {
    "aggregate": (
        "allowDiskUse bypassDocumentValidation collation collectionUUID cursor encryptionInformation exchange explain "
        "fromMongos fromRouter hint includeQueryStatsMetrics isMapReduceCommand let needsMerge passthroughToShard "
        "pipeline querySettings runtimeConstants"
    ),
    "bulkWrite": ("bypassDocumentValidation cursor errorsOnly let nsInfo ops ordered"),
    "count": "collation collectionUUID fields hint includeQueryStatsMetrics limit query queryOptions skip",
    "createIndexes": "commitQuorum ignoreUnknownIndexOptions indexes isTimeseriesNamespace returnOnStart",
    "delete": "bypassDocumentValidation collectionUUID deletes encryptionInformation let ordered runtimeConstants",
    "distinct": "collation hint includeQueryStatsMetrics key query queryOptions",
    "drop": "collectionUUID encryptionInformation",
    "dropDatabase": "",
    "dropIndexes": "collectionUUID index isTimeseriesNamespace",
    "find": (
        "allowDiskUse allowPartialResults allowSpeculativeMajorityRead awaitData batchSize collation "
        "encryptionInformation filter hint includeQueryStatsMetrics let limit max min noCursorTimeout oplogReplay "
        "projection querySettings readOnce returnKey runtimeConstants showRecordId singleBatch skip sort tailable term"
    ),
    "findAndModify": (
        "arrayFilters bypassDocumentValidation collation collectionUUID encryptionInformation fields hint let new "
        "query remove runtimeConstants sort update upsert"
    ),
    "getMore": "batchSize collection includeQueryStatsMetrics lastKnownCommittedOpTime term",
    "insert": "bypassDocumentValidation collectionUUID documents encryptionInformation ordered",
    "killCursors": "cursors",
    "listCollections": "authorizedCollections cursor filter includePendingDrops nameOnly",
    "listDatabases": "authorizedDatabases filter nameOnly",
    "listIndexes": "cursor includeBuildUUIDs includeIndexBuildInfo isTimeseriesNamespace",
    "renameCollection": "collectionUUID dropTarget encryptionInformation stayTemp to",
    "update": "bypassDocumentValidation collectionUUID encryptionInformation let ordered runtimeConstants updates",
}
KNOWN: Final = {name: GENERIC | {name, *fields.split()} for name, fields in _BY_COMMAND.items()}
"""The fields of a command, by its name."""

DELETE_STATEMENT: Final = frozenset({"collation", "hint", "limit", "q", "sampleId"})
UPDATE_STATEMENT: Final = frozenset({
    "arrayFilters", "c", "collation", "hint", "multi", "q", "sampleId", "sort", "u", "upsert", "upsertSupplied",
})  # fmt: skip
CURSOR: Final = frozenset({"batchSize"})


def check(field_path: str, body: dict[str, Any], known: Collection[str], alias: str = "") -> None:
    """Raise 40415 for a field that is not known; `alias` is how the client spelt the command."""
    for name in body:
        if name not in known and name != alias and not name.startswith("$"):
            raise CommandError(40415, f"BSON field '{field_path}.{name}' is an unknown field.")


def raw_documents(request: Request, field: str) -> list[bytes]:
    """The documents of a write, raw: a kind-1 section's, or those of the array in the body."""
    documents = request.sequences.get(field)
    if documents is None:
        field_path = find_element(request.raw, field.encode())
        if field_path is None:
            raise CommandError(40414, f"BSON field '{request.name}.{field}' is missing but a required field")
        kind, start, _ = field_path
        if kind != 0x04:
            value = request.body.get(field, MISSING)
            raise CommandError(
                14, f"BSON field '{request.name}.{field}' is the wrong type '{type_name(value)}', expected type 'array'"
            )
        documents = []
        for kind, name, low, high in iter_elements(request.raw, start):
            if kind != 0x03:
                element_path = f"{request.name}.{field}.{name.decode()}"
                raise CommandError(14, f"BSON field '{element_path}' is the wrong type, expected type 'object'")
            documents.append(request.raw[low:high])
    if not 1 <= len(documents) <= limits.WRITE_BATCH_COUNT_MAX:
        raise CommandError(
            16,
            f"Write batch sizes must be between 1 and {limits.WRITE_BATCH_COUNT_MAX}. Got {len(documents)} operations.",
        )
    return documents


def flag(body: dict[str, Any], name: str, default: bool, command: str) -> bool:
    """A boolean field as MongoDB takes it: true, false, or a number."""
    value = body.get(name, default)
    if value is None:
        return default
    if type(value) is bool:
        return value
    if type(value) in NUMBERS:
        return truthy(value)
    raise CommandError(
        14, f"BSON field '{command}.{name}' is the wrong type '{type_name(value)}', expected type 'bool'"
    )


def object_field(body: dict[str, Any], name: str, command: str) -> dict[str, Any]:
    """A field that must be a document; {} where it is absent."""
    value = body.get(name)
    if value is None:
        return {}
    if type(value) is not dict:
        raise CommandError(
            14, f"BSON field '{command}.{name}' is the wrong type '{type_name(value)}', expected type 'object'"
        )
    return value


def integer_field(body: dict[str, Any], name: str, command: str) -> int | None:
    """A field that must be a number, cut to one that fits 64 bits (a NaN to 0); None where it is absent."""
    value = body.get(name)
    if value is None:
        return None
    if type(value) not in NUMBERS:
        raise CommandError(
            14,
            f"BSON field '{command}.{name}' is the wrong type '{type_name(value)}', "
            "expected types '[long, int, decimal, double']",
        )
    return to_long(value)
