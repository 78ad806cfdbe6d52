"""The fields that every command takes, and the fields that several commands share.

Source: MongoDB's generic command arguments.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.dispatch.arguments import (
    Field,
    Fields,
    FieldType,
    any_type,
    array,
    boolean,
    document,
    number,
    string,
    uuid,
    without_effect,
)
from headrace.dispatch.concerns.write_concern import WRITE_CONCERN, check_source
from headrace.errors import CommandError
from headrace.query.expressions.numbers import INT32_MAX, int64_of, no_long


def _check_time(path: str, value: Any) -> None:
    name, milliseconds = path.rpartition(".")[2], int64_of(value)
    if milliseconds is None:
        raise CommandError(9, no_long(name, value))
    if milliseconds < 0:
        raise CommandError(2, f"BSON field '{name}' value must be >= 0, actual value '{milliseconds}'")
    if milliseconds > INT32_MAX:
        raise CommandError(2, f"BSON field '{name}' value must be <= {INT32_MAX}, actual value '{milliseconds}'")


MAX_TIME_MS: Final = number("maxTimeMS", check=_check_time)
TXN_NUMBER: Final = Field("txnNumber", "long", None)
READ_CONCERN: Final = document("readConcern", Fields(
    Field("provenance", "string", None, check=check_source),
    Field("afterClusterTime", "timestamp", None),
    Field("atClusterTime", "timestamp", None),
    string("level"),
    path="readConcern",
))  # fmt: skip
SESSION: Final = Fields(
    uuid("id", required=True), *without_effect("binData", "uid"), Field("txnNumber", "long", None), uuid("txnUUID"),
)  # fmt: skip
"""The fields of a session's id."""
GENERIC: Final = Fields(
    any_type("$clusterTime"),
    any_type("$db"),
    any_type("$readPreference"),
    boolean("apiDeprecationErrors", strict=True),
    boolean("apiStrict", strict=True),
    string("apiVersion"),
    boolean("autocommit", strict=True),
    document("lsid", SESSION),
    MAX_TIME_MS,
    READ_CONCERN,
    boolean("startTransaction", strict=True),
    Field("stmtId", "int", None),
    array("stmtIds", "int"),
    TXN_NUMBER,
    WRITE_CONCERN,
    *without_effect("any", "comment", "help"),
    *without_effect("array", "requestGossipRoutingCache"),
    *without_effect("binData", "clientOperationKey"),
    *without_effect("int", "txnRetryCounter"),
    *without_effect("bool", "rawData"),
    *without_effect("number", "maxTimeMSOpOnly"),
    *without_effect("object", "databaseVersion", "shardVersion", "tracking_info", "versionContext"),
    *without_effect(
        "strictBool", "allowImplicitCollectionCreation", "coordinator", "expectPrefix", "mayBypassWriteBlocking",
        "startOrContinueTransaction", "usesDefaultMaxTimeMS",
    ),
)  # fmt: skip
ACTED_UPON: Final = frozenset({
    "apiDeprecationErrors", "apiStrict", "apiVersion", "autocommit", "collectionUUID", "maxTimeMS", "readConcern",
    "startTransaction",
})  # fmt: skip
"""The fields that the engine acts upon before the command runs. Most requests have none of them."""

# Fields of several commands.

BATCH_SIZE: Final = number("batchSize", least=0)
COLLATION: Final = document("collation")
CURSOR: Final = document("cursor", Fields(BATCH_SIZE))
HINT: Final = Field("hint", FieldType(("string", "object")), None, error=(9, "Hint must be a string or an object"))
LET: Final = document("let")
MULTI: Final = boolean("multi", strict=True)
NO_CURSOR_TIMEOUT: Final = boolean("noCursorTimeout")
ORDERED: Final = boolean("ordered", default=True, strict=True)
BYPASS: Final = boolean("bypassDocumentValidation")
KEEPS_EMPTY_TIMESTAMPS: Final = boolean("bypassEmptyTsReplacement")
UPDATE: Final = FieldType(("object", "array"))
NOT_AN_UPDATE: Final = (9, "Update argument must be either an object or an array")
UPSERT: Final = boolean("upsert", strict=True)
ARRAY_FILTERS: Final = array("arrayFilters", "object")
CONSTANTS: Final = without_effect("object", "runtimeConstants")
ENCRYPTION: Final = without_effect("object", "encryptionInformation")
QUERY_SETTINGS: Final = without_effect("object", "querySettings")
QUERY_STATS: Final = without_effect("bool", "includeQueryStatsMetrics")
SAMPLE: Final = without_effect("binData", "sampleId")
SAMPLED_READ: Final = [*without_effect("bool", "mirrored"), *SAMPLE]
TIME_SERIES: Final = without_effect("bool", "isTimeseriesNamespace")
