"""Every field of MongoDB 8.2's commands is known: accepted, used, or refused as MongoDB does, and no other field is.

Source: MongoDB's manual and the drivers' specifications, and for what a cluster's members send each other MongoDB's
own declarations of its commands. Names that begin with a dollar sign belong to drivers and are accepted everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from bson import Binary, Int64, ObjectId, Timestamp

from headrace.commands.catalog import coll_mod, index_specification
from headrace.commands.table import COMMANDS
from headrace.commands.writing import bulk_write, delete, update
from headrace.dispatch.arguments import Field, Fields
from headrace.dispatch.generic_arguments import GENERIC
from headrace.dispatch.namespaces import NAMESPACE_INFO
from headrace.testing.driven import DrivenServer

EVERY_COMMAND: Final = frozenset(
    """
    allowImplicitCollectionCreation apiDeprecationErrors apiStrict apiVersion autocommit clientOperationKey comment
    coordinator databaseVersion expectPrefix help lsid maxTimeMS maxTimeMSOpOnly mayBypassWriteBlocking rawData
    readConcern requestGossipRoutingCache shardVersion startOrContinueTransaction startTransaction stmtId stmtIds
    tracking_info txnNumber txnRetryCounter usesDefaultMaxTimeMS versionContext writeConcern
""".split()
)
WRITING: Final = """
    bypassDocumentValidation bypassEmptyTsReplacement collectionUUID encryptionInformation isTimeseriesNamespace ordered
"""
FIELDS: Final[dict[str, str]] = {
    "abortTransaction": "recoveryToken",
    "aggregate": """
        allowDiskUse bypassDocumentValidation collation collectionUUID cursor encryptionInformation exchange explain
        fromMongos fromRouter hint includeQueryStatsMetrics isMapReduceCommand let needsMerge pipeline querySettings
        runtimeConstants sampleId
    """,
    "autoCompact": "freeSpaceTargetMB runOnce",
    "bulkWrite": "bypassDocumentValidation bypassEmptyTsReplacement cursor errorsOnly let nsInfo ops ordered",
    "collMod": """
        cappedMax cappedSize changeStreamPreAndPostImages collectionUUID dryRun expireAfterSeconds index pipeline
        recordIdsReplicated timeseries timeseriesBucketsMayHaveMixedSchemaData validationAction validationLevel
        validator viewOn
    """,
    "commitTransaction": "commitTimestamp recoveryToken",
    "count": """
        collation encryptionInformation fields hint includeQueryStatsMetrics limit mirrored query sampleId skip
    """,
    "create": """
        capped changeStreamPreAndPostImages clusteredIndex collation encryptedFields expireAfterSeconds flags idIndex
        indexOptionDefaults max pipeline recordIdsReplicated size storageEngine temp timeseries validationAction
        validationLevel validator viewOn
    """,
    "createIndexes": """
        collectionUUID commitQuorum ignoreUnknownIndexOptions indexes isTimeseriesNamespace returnOnStart v
    """,
    "createRole": "authenticationRestrictions privileges roles",
    "createUser": "authenticationRestrictions customData digestPassword mechanisms pwd roles",
    "delete": f"{WRITING} deletes let runtimeConstants",
    "distinct": "collation hint includeQueryStatsMetrics key mirrored query querySettings sampleId",
    "drop": "collectionUUID",
    "dropAllRolesFromDatabase": "",
    "dropAllUsersFromDatabase": "",
    "dropConnections": "hostAndPort",
    "dropDatabase": "",
    "dropIndexes": "collectionUUID index isTimeseriesNamespace",
    "dropRole": "",
    "dropUser": "",
    "endSessions": "",
    "explain": "verbosity",
    "find": """
        allowDiskUse allowPartialResults awaitData batchSize collation collectionUUID encryptionInformation filter hint
        includeQueryStatsMetrics let limit max min mirrored noCursorTimeout oplogReplay projection querySettings
        readOnce returnKey runtimeConstants sampleId showRecordId singleBatch skip sort tailable term
    """,
    "findAndModify": """
        arrayFilters batchSize bypassDocumentValidation bypassEmptyTsReplacement collation encryptionInformation fields
        hint isTimeseriesNamespace let new query remove runtimeConstants sampleId singleBatch sort update upsert
    """,
    "getDefaultRWConcern": "inMemory",
    "getMore": "batchSize collection includeQueryStatsMetrics lastKnownCommittedOpTime term",
    "grantPrivilegesToRole": "privileges",
    "grantRolesToRole": "roles",
    "grantRolesToUser": "roles",
    "insert": f"{WRITING} documents",
    "invalidateUserCache": "",
    "killCursors": "cursors",
    "listCollections": "authorizedCollections cursor filter includePendingDrops nameOnly",
    "listDatabases": "authorizedDatabases filter nameOnly",
    "listIndexes": "cursor includeBuildUUIDs includeIndexBuildInfo isTimeseriesNamespace",
    "ping": "",
    "refreshSessions": "",
    "renameCollection": "collectionUUID dropTarget stayTemp to",
    "revokePrivilegesFromRole": "privileges",
    "revokeRolesFromRole": "roles",
    "revokeRolesFromUser": "roles",
    "rolesInfo": "showAuthenticationRestrictions showBuiltinRoles showPrivileges",
    "setDefaultRWConcern": "defaultReadConcern defaultWriteConcern",
    "update": f"{WRITING} let runtimeConstants updates",
    "updateRole": "authenticationRestrictions privileges roles",
    "updateUser": "authenticationRestrictions customData digestPassword mechanisms pwd roles",
    "validateDBMetadata": "apiParameters collection db",
    "usersInfo": "filter showAuthenticationRestrictions showCredentials showCustomData showPrivileges",
}
"""The fields of each command that refuses what it does not know, but those of every command and its own name."""
MORE: Final = {
    "aggregate": "bypassEmptyTsReplacement",
    "count": "collectionUUID",
    "create": "autoIndexId",
    "distinct": "collectionUUID",
    "findAndModify": "collectionUUID",
}
"""Fields that only Headrace accepts, or that releases before 8.2 had and dumps of theirs name."""
STATEMENTS: Final[dict[str, tuple[Fields | None, str]]] = {
    "bulkWrite.nsInfo": (
        NAMESPACE_INFO,
        "collectionUUID databaseVersion encryptionInformation isTimeseriesNamespace ns shardVersion",
    ),
    "bulkWrite.ops of a delete": (bulk_write.OPERATIONS["delete"], "collation delete filter hint multi sampleId"),
    "bulkWrite.ops of an insert": (bulk_write.OPERATIONS["insert"], "document insert"),
    "bulkWrite.ops of an update": (
        bulk_write.OPERATIONS["update"],
        "arrayFilters collation constants filter hint multi sampleId sort update updateMods upsert upsertSupplied",
    ),
    "collMod.index": (
        coll_mod.INDEX.fields, "expireAfterSeconds forceNonUnique hidden keyPattern name prepareUnique unique"
    ),
    "createIndexes.indexes": (
        index_specification.SPECIFICATION,
        """
        2dsphereIndexVersion background bits bucketSize clustered coarsestIndexedLevel collation default_language
        dropDups expireAfterSeconds finestIndexedLevel hidden key language_override max min name ns originalSpec
        partialFilterExpression prepareUnique sparse storageEngine textIndexVersion unique v weights wildcardProjection
        """,
    ),
    "delete.deletes": (delete.STATEMENT, "collation hint limit q sampleId"),
    "update.updates": (
        update.STATEMENT, "arrayFilters c collation hint multi q sampleId sort u upsert upsertSupplied"
    ),
}  # fmt: skip
BEGINNINGS: Final[dict[str, dict[str, Any]]] = {
    "aggregate": {"pipeline": [], "cursor": {}},
    "bulkWrite": {"ops": [{"delete": 0, "filter": {"_id": 9}}], "nsInfo": [{"ns": "t.c"}]},
    "createIndexes": {"indexes": [{"key": {"a": 1}, "name": "a_1"}]},
    "delete": {"deletes": [{"q": {"_id": 9}, "limit": 0}]},
    "distinct": {"key": "a"},
    "dropConnections": {"hostAndPort": []},
    "dropIndexes": {"index": "*"},
    "findAndModify": {"query": {"_id": 9}, "update": {"$set": {"a": 1}}},
    "getMore": {"collection": "c"},
    "insert": {"documents": [{"a": 1}]},
    "killCursors": {"cursors": [Int64(1)]},
    "validateDBMetadata": {"apiParameters": {}},
    "renameCollection": {"to": "t.d"},
    "update": {"updates": [{"q": {"_id": 9}, "u": {"$set": {"a": 1}}}]},
}
VALUES: Final[tuple[Any, ...]] = (
    True, Int64(0), 0, {}, [], "c", Binary(bytes(16), 4), Timestamp(1, 1), ObjectId("a" * 24), 0.5,
)  # fmt: skip
REFUSED: Final = {
    ("collMod", "recordIdsReplicated"): 72, ("collMod", "timeseriesBucketsMayHaveMixedSchemaData"): 72,
    ("create", "recordIdsReplicated"): 72, ("create", "temp"): 72,
}  # fmt: skip
"""Fields that are refused when they are true, with the code."""


def of_mongodb(command: str) -> frozenset[str]:
    return frozenset(FIELDS[command].split()) | {command, *COMMANDS[command].aliases} | EVERY_COMMAND


@pytest.mark.parametrize("command", FIELDS)
def test_a_command_knows_exactly_the_fields_that_mongodb_knows(command: str) -> None:
    arguments = COMMANDS[command].arguments
    known = {name for name in arguments.by_name if not name.startswith("$")}
    assert arguments.strict and known - set(MORE.get(command, "").split()) == of_mongodb(command)


@pytest.mark.parametrize("path", STATEMENTS)
def test_a_statement_knows_exactly_the_fields_that_mongodb_knows(path: str) -> None:
    fields, names = STATEMENTS[path]
    assert fields is not None and fields.by_name.keys() == set(names.split())


def test_the_table_has_every_command_that_refuses_what_it_does_not_know() -> None:
    ours = {"_mergeAuthzCollections", "headraceBackup", "headraceChanges"}
    undeclared = {"compact", "cloneCollectionAsCapped", "convertToCapped", "dataSize", "logApplicationMessage"}
    others = {
        "connectionStatus", "dbStats", "fsync", "hostInfo", "profile", "reIndex", "removeQuerySettings",
        "rotateCertificates", "setQuerySettings", "setUserWriteBlockMode",
    }  # fmt: skip
    strict = {command.name for command in COMMANDS.values() if command.fields.strict}
    assert strict == FIELDS.keys() | ours | undeclared | others


def test_every_command_has_the_generic_fields() -> None:
    assert {name for name in GENERIC.by_name if not name.startswith("$")} == EVERY_COMMAND
    for command in COMMANDS.values():
        assert command.arguments.by_name.keys() >= EVERY_COMMAND, command.name


def beginning(command: str) -> dict[str, Any]:
    types = COMMANDS[command].arguments.by_name[command].kind.types
    first = next(value for value in ("t.c" if command == "renameCollection" else "c", Int64(1), {"find": "c"}, [], True)
                 if type(value) in types)  # fmt: skip
    return {command: first, **BEGINNINGS.get(command, {})}


def of_a_right_type(field: Field[Any]) -> Any:
    return next(value for value in VALUES if type(value) in field.kind.types)


@pytest.fixture(scope="module")
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": number} for number in range(3)]})
        yield server


@pytest.mark.parametrize("command", FIELDS)
def test_no_field_of_mongodbs_is_an_unknown_one(server: DrivenServer, command: str) -> None:
    for name in sorted(of_mongodb(command) - {command, *COMMANDS[command].aliases}):
        field = COMMANDS[command].arguments.by_name[name]
        body = {**beginning(command), name: of_a_right_type(field)}
        reply = server.run("admin" if COMMANDS[command].admin_only else "t", body)
        assert not isinstance(reply, dict) or reply.get("code") not in (14, 40415), (name, reply)
        if (command, name) in REFUSED:
            assert isinstance(reply, dict) and reply["code"] == REFUSED[command, name], reply


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"aggregate": "c", "pipeline": [], "cursor": {}, "passthroughToShard": {}}, "aggregate.passthroughToShard"),
        ({"commitTransaction": 1, "nope": 1}, "commitTransaction.nope"),
        ({"count": "c", "queryOptions": {}}, "count.queryOptions"),
        ({"drop": "c", "encryptionInformation": {}}, "drop.encryptionInformation"),
        ({"endSessions": [], "nope": 1}, "endSessions.nope"),
        ({"find": "c", "isRetryableWrite": True}, "FindCommandRequest.isRetryableWrite"),
        ({"find": "c", "ntoreturn": 1}, "FindCommandRequest.ntoreturn"),
        ({"find": "c", "options": {}}, "FindCommandRequest.options"),
        ({"ping": 1, "nope": 1}, "ping.nope"),
        ({"update": "c", "updates": [{"q": {}, "u": {}, "limit": 1}]}, "update.updates.limit"),
    ],
)
def test_a_field_that_mongodb_does_not_know_is_refused(server: DrivenServer, body: dict[str, Any], field: str) -> None:
    db = "admin" if "commitTransaction" in body else "t"
    reply = server.run(db, body)
    assert isinstance(reply, dict)
    assert (reply["code"], reply["errmsg"]) == (40415, f"BSON field '{field}' is an unknown field.")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"insert": "c", "documents": [{}], "ordered": 1}, "insert.ordered"),
        ({"update": "c", "updates": [{"q": {}, "u": {}, "multi": 1}]}, "update.updates.multi"),
        ({"update": "c", "updates": [{"q": {}, "u": {}, "upsert": 0}]}, "update.updates.upsert"),
    ],
)
def test_a_number_is_no_flag_of_a_write(server: DrivenServer, body: dict[str, Any], field: str) -> None:
    reply = server.run("t", body)
    assert isinstance(reply, dict) and reply["code"] == 14
    assert reply["errmsg"] == f"BSON field '{field}' is the wrong type 'int', expected type 'bool'"
    assert server.must("t", {"findAndModify": "c", "query": {"_id": 0}, "update": {"a": 1}, "upsert": 1})["ok"] == 1.0


@pytest.mark.parametrize(
    ("ids", "code"), [({"stmtIds": [1]}, 16), ({"stmtIds": []}, 16), ({"stmtIds": [1, 2], "stmtId": 1}, 72)], ids=str
)
def test_each_statement_has_one_id(server: DrivenServer, ids: dict[str, Any], code: int) -> None:
    for db, body in (
        ("t", {"insert": "ids", "documents": [{}, {}]}),
        ("t", {"update": "ids", "updates": [{"q": {}, "u": {"a": 1}}] * 2}),
        ("t", {"delete": "ids", "deletes": [{"q": {}, "limit": 0}] * 2}),
        ("admin", {"bulkWrite": 1, "ops": [{"delete": 0, "filter": {}}] * 2, "nsInfo": [{"ns": "t.ids"}]}),
    ):  # fmt: skip
        reply = server.run(db, {**body, **ids})
        assert isinstance(reply, dict) and reply["code"] == code, reply
        assert server.must(db, {**body, "stmtIds": [1, 2]})["ok"] == 1.0


def test_the_limits_of_a_capped_collection_change() -> None:
    with DrivenServer() as server:
        server.must("t", {"create": "log", "capped": True, "size": 4096, "max": 10})
        server.must("t", {"insert": "log", "documents": [{"_id": number} for number in range(10)]})
        assert server.must("t", {"collMod": "log", "cappedMax": 3, "cappedSize": 8192})["ok"] == 1.0
        listed = server.must("t", {"listCollections": 1})["cursor"]["firstBatch"][0]["options"]
        assert (listed["size"], listed["max"]) == (8192, 3)
        server.must("t", {"insert": "log", "documents": [{"_id": 10}]})
        found = server.must("t", {"find": "log"})["cursor"]["firstBatch"]
        assert [document["_id"] for document in found] == [8, 9, 10]
        server.must("t", {"create": "plain"})
        for body, code in (
            ({"collMod": "log", "cappedSize": 0}, 2), ({"collMod": "log", "cappedMax": 2**31}, 2),
            ({"collMod": "plain", "cappedMax": 3}, 72),
        ):  # fmt: skip
            reply = server.run("t", body)
            assert isinstance(reply, dict) and reply["code"] == code, body
