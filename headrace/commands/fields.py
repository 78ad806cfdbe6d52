"""The fields a request may have: any other is error 40415, so that a misspelt option is told and not passed over.

Rule: what begins with a dollar sign is the drivers' own and let pass. A command that is not in the table looks at
its fields itself, or takes any.
Source: the reference of each command; MongoDB's generic command arguments.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from headrace.errors import CommandError

GENERIC: Final = frozenset({
    "apiDeprecationErrors", "apiStrict", "apiVersion", "autocommit", "clientOperationKey", "comment", "help", "lsid",
    "maxTimeMS", "maxTimeMSOpOnly", "rawData", "readConcern", "startTransaction", "stmtId", "stmtIds",
    "txnNumber", "txnRetryCounter", "writeConcern",
})  # fmt: skip

_OWN: Final = {
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
KNOWN: Final = {name: GENERIC | {name, *fields.split()} for name, fields in _OWN.items()}
"""The fields of a command, by its name."""

DELETE_STATEMENT: Final = frozenset({"collation", "hint", "limit", "q", "sampleId"})
UPDATE_STATEMENT: Final = frozenset({
    "arrayFilters", "c", "collation", "hint", "multi", "q", "sampleId", "sort", "u", "upsert", "upsertSupplied",
})  # fmt: skip
CURSOR: Final = frozenset({"batchSize"})


def check(place: str, body: dict[str, Any], known: Collection[str], alias: str = "") -> None:
    """Raise 40415 for a field that is not known; `alias` is how the client spelt the command."""
    for name in body:
        if name not in known and name != alias and not name.startswith("$"):
            raise CommandError(40415, f"BSON field '{place}.{name}' is an unknown field.")
