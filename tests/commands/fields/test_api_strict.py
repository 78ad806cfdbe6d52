"""The strict stable API: the fields, stages and kinds of indexes that are not in version 1 are error 323."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from bson import Binary, Int64, encode
from pymongo import MongoClient
from pymongo.database import Database

import headrace
from headrace.commands.catalog import coll_mod, index_specification
from headrace.commands.table import COMMANDS
from headrace.commands.writing import bulk_write, delete, update
from headrace.dispatch import api_version
from headrace.dispatch.namespaces import NAMESPACE_INFO
from headrace.query.pipeline import STAGES, UNSUPPORTED
from headrace.testing.driven import DrivenServer

STRICT: Final = {"apiVersion": "1", "apiStrict": True}
SET: Final = {"$set": {"a": 1}}
UUID: Final = Binary(bytes(16), 4)


@pytest.fixture(scope="module")
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": number} for number in range(3)]})
        yield server


def refusal(server: DrivenServer, body: dict[str, Any], db: str = "t") -> tuple[int, str]:
    reply = server.run(db, {**body, **STRICT})
    assert isinstance(reply, dict) and reply["codeName"] == "APIStrictError", (body, reply)
    return reply["code"], reply["errmsg"]


def key(**options: Any) -> dict[str, Any]:
    return {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1", **options}]}


FIELDS: Final[list[tuple[str, dict[str, Any]]]] = [
    ("aggregate.explain", {"aggregate": "c", "pipeline": [], "explain": True}),
    ("aggregate.collectionUUID", {"aggregate": "c", "pipeline": [], "cursor": {}, "collectionUUID": UUID}),
    ("collMod.dryRun", {"collMod": "c", "dryRun": True}),
    ("collMod.index.prepareUnique", {"collMod": "c", "index": {"name": "a_1", "prepareUnique": True}}),
    ("create.autoIndexId", {"create": "d", "autoIndexId": True}),
    ("create.capped", {"create": "d", "capped": True}),
    ("create.changeStreamPreAndPostImages", {"create": "d", "changeStreamPreAndPostImages": {"enabled": True}}),
    ("create.indexOptionDefaults", {"create": "d", "indexOptionDefaults": {}}),
    ("create.max", {"create": "d", "max": 5}),
    ("create.size", {"create": "d", "capped": False, "size": 4096}),
    ("create.storageEngine", {"create": "d", "storageEngine": {}}),
    ("createIndexes.ignoreUnknownIndexOptions", {**key(), "ignoreUnknownIndexOptions": True}),
    ("createIndexes.indexes.background", key(background=True)),
    ("createIndexes.indexes.bucketSize", key(bucketSize=1)),
    ("createIndexes.indexes.sparse", key(sparse=True)),
    ("createIndexes.indexes.storageEngine", key(storageEngine={})),
    ("delete.collectionUUID", {"delete": "c", "deletes": [{"q": {}, "limit": 0}], "collectionUUID": UUID}),
    ("delete.deletes.sampleId", {"delete": "c", "deletes": [{"q": {}, "limit": 0, "sampleId": UUID}]}),
    ("drop.collectionUUID", {"drop": "c", "collectionUUID": UUID}),
    ("find.awaitData", {"find": "c", "awaitData": False}),
    ("find.max", {"find": "c", "max": {"_id": 1}, "hint": {"_id": 1}}),
    ("find.min", {"find": "c", "min": {"_id": 1}, "hint": {"_id": 1}}),
    ("find.noCursorTimeout", {"find": "c", "noCursorTimeout": True}),
    ("find.oplogReplay", {"find": "c", "oplogReplay": True}),
    ("find.readOnce", {"find": "c", "readOnce": True}),
    ("find.returnKey", {"find": "c", "returnKey": False}),
    ("find.returnKey", {"explain": {"find": "c", "returnKey": True}}),
    ("find.showRecordId", {"find": "c", "showRecordId": True}),
    ("find.tailable", {"find": "c", "tailable": True}),
    ("find.term", {"find": "c", "term": Int64(1)}),
    (
        "findAndModify.bypassEmptyTsReplacement",
        {"findandmodify": "c", "update": SET, "bypassEmptyTsReplacement": True},
    ),
    ("getMore.term", {"getMore": Int64(1), "collection": "c", "term": Int64(1)}),
    ("insert.bypassEmptyTsReplacement", {"insert": "c", "documents": [{}], "bypassEmptyTsReplacement": True}),
    ("listIndexes.includeIndexBuildInfo", {"listIndexes": "c", "includeIndexBuildInfo": True}),
    ("update.updates.sort", {"update": "c", "updates": [{"q": {}, "u": SET, "sort": {"a": 1}}]}),
]


@pytest.mark.parametrize(("field", "body"), FIELDS, ids=lambda value: value if type(value) is str else "")
def test_a_field_outside_of_version_1_is_refused(server: DrivenServer, field: str, body: dict[str, Any]) -> None:
    assert refusal(server, body) == (323, f"BSON field '{field}' is not allowed with apiStrict:true.")
    assert server.run("t", {"count": "d"})["n"] == 0 and server.run("t", {"count": "c"})["n"] == 3


def test_a_statement_of_a_bulk_write_is_looked_at(server: DrivenServer) -> None:
    body = {"bulkWrite": 1, "ops": [{"update": 0, "filter": {}, "updateMods": SET, "sort": {"a": 1}}]}
    assert "bulkWrite.ops.sort" in refusal(server, {**body, "nsInfo": [{"ns": "t.c"}]}, "admin")[1]
    named = {"bulkWrite": 1, "ops": [{"delete": 0, "filter": {}}], "nsInfo": [{"ns": "t.c", "collectionUUID": UUID}]}
    assert "bulkWrite.nsInfo.collectionUUID" in refusal(server, named, "admin")[1]


def test_statements_sent_beside_the_body_are_looked_at(server: DrivenServer) -> None:
    statements = [{"q": {"_id": 1}, "u": SET}, {"q": {}, "u": SET, "sort": {"a": 1}}]
    request = server.request("t", {"update": "c", **STRICT})
    request.sequences = {"updates": [encode(statement) for statement in statements]}
    reply = server.answer(request)
    assert isinstance(reply, dict) and reply["errmsg"].startswith("BSON field 'update.updates.sort' is not allowed")


def test_a_command_outside_of_version_1_is_refused_before_its_fields_are_looked_at(server: DrivenServer) -> None:
    for body in ({"distinct": "c"}, {"distinct": "c", "key": 1, "nope": 1}, {"serverStatus": 1}):
        assert refusal(server, body)[1].startswith(f"Provided apiStrict:true, but the command {next(iter(body))} is")


def test_null_is_the_same_as_absent(server: DrivenServer) -> None:
    assert server.must("t", {"find": "c", "let": None, "limit": None, **STRICT})


@pytest.mark.parametrize("stage", sorted(api_version.STAGES))
def test_a_stage_outside_of_version_1_is_refused_wherever_it_stands(server: DrivenServer, stage: str) -> None:
    message = f"{stage} is not allowed with 'apiStrict: true' in API Version 1"
    inner = [{stage: {}}]
    for pipeline in (
        inner, [{"$facet": {"a": inner}}], [{"$unionWith": {"coll": "c", "pipeline": inner}}],
        [{"$lookup": {"from": "c", "pipeline": [{"$facet": {"b": inner}}], "as": "x"}}],
    ):  # fmt: skip
        assert refusal(server, {"aggregate": "c", "pipeline": pipeline, "cursor": {}}) == (323, message)
    assert refusal(server, {"create": "v", "viewOn": "c", "pipeline": inner}) == (323, message)
    assert refusal(server, {"collMod": "v", "viewOn": "c", "pipeline": inner}) == (323, message)
    assert refusal(server, {"explain": {"aggregate": "c", "pipeline": inner, "cursor": {}}}) == (323, message)


def test_coll_stats_only_counts(server: DrivenServer) -> None:
    message = "only the 'count' option to $collStats is supported in API Version 1"
    for option in ("latencyStats", "queryExecStats", "storageStats"):
        pipeline = [{"$collStats": {"count": {}, option: {}}}]
        assert refusal(server, {"aggregate": "c", "pipeline": pipeline, "cursor": {}}) == (323, message)
    counted = server.must("t", {"aggregate": "c", "pipeline": [{"$collStats": {"count": {}}}], "cursor": {}, **STRICT})
    assert counted["cursor"]["firstBatch"][0]["count"] == 3


def test_a_text_index_is_refused(server: DrivenServer) -> None:
    body = {"createIndexes": "c", "indexes": [{"key": {"a": "text"}, "name": "a"}]}
    assert refusal(server, body)[1] == "The index type 'text' is not allowed with apiStrict:true."


@pytest.mark.parametrize(
    "read", [{"aggregate": "stats", "pipeline": [], "cursor": {}}, {"count": "stats"}, {"find": "stats"}],
    ids=lambda body: next(iter(body)),
)  # fmt: skip
def test_a_view_made_without_the_api_is_refused_when_read(server: DrivenServer, read: dict[str, Any]) -> None:
    server.must("t", {"create": "stats", "viewOn": "c", "pipeline": [{"$indexStats": {}}]})
    assert server.run("t", read).get("code") != 323
    assert refusal(server, read)[1].startswith("$indexStats is not allowed")


def test_what_is_in_version_1_is_answered(server: DrivenServer) -> None:
    pipeline = [{"$densify": {"field": "_id", "range": {"step": 1, "bounds": "full"}}}, {"$limit": 1}]
    for db, body in (
        ("t", {"aggregate": "c", "pipeline": pipeline, "cursor": {}, "let": {"a": 1}, "hint": "_id_"}),
        ("t", {"create": "e", "capped": False, "validator": {}}),
        ("t", {"createIndexes": "e", "indexes": [{"key": {"a": 1}, "name": "a_1", "hidden": True, "unique": True}]}),
        ("t", {"find": "c", "allowPartialResults": True, "singleBatch": True, "allowDiskUse": True, "rawData": False}),
        ("admin", {"renameCollection": "t.e", "to": "t.f", "dropTarget": True}),
        ("t", {"drop": "f", "writeConcern": {"w": 1}}),
    ):  # fmt: skip
        assert server.must(db, {**body, **STRICT})["ok"] == 1.0


def test_the_tables_name_nothing_that_headrace_does_not_know() -> None:
    """A name that is spelled wrong would refuse nothing."""
    assert STAGES.keys() | UNSUPPORTED.keys() >= api_version.STAGES
    statements = {
        "bulkWrite.nsInfo": NAMESPACE_INFO, "bulkWrite.ops": bulk_write.OPERATIONS["update"],
        "collMod.index": coll_mod.INDEX.fields, "createIndexes.indexes": index_specification.SPECIFICATION,
        "delete.deletes": delete.STATEMENT, "update.updates": update.STATEMENT,
    }  # fmt: skip
    for path, names in api_version.FIELDS.items():
        command, _, part = path.partition(".")
        assert command in api_version.IN_VERSION_1
        fields = statements[path] if part else COMMANDS[command].arguments
        assert fields is not None and fields.by_name.keys() >= names, path


@pytest.fixture(scope="module", name="database")
def _database() -> Iterator[Database[Any]]:
    """A database of a real server, whose commands have turns."""
    with headrace.Server() as server, MongoClient[Any](server.uri) as client:
        yield client.t


@pytest.mark.parametrize(
    "body",
    [
        {"find": "h", "filter": {"a": 1}, "hint": {"a": 1}},
        {"count": "h", "query": {"a": 1}, "hint": "a_1"},
        {"aggregate": "h", "pipeline": [], "cursor": {}, "hint": "a_1"},
        {"findAndModify": "h", "query": {"a": 1}, "remove": True, "hint": "a_1"},
        {"update": "h", "updates": [{"q": {"a": 1}, "u": {"$set": {"b": 1}}, "hint": "a_1"}]},
        {"delete": "h", "deletes": [{"q": {"a": 1}, "limit": 1, "hint": "a_1"}]},
        {"explain": {"find": "h", "filter": {"a": 1}, "hint": "a_1"}, "verbosity": "queryPlanner"},
        {"explain": {"delete": "h", "deletes": [{"q": {"a": 1}, "limit": 1, "hint": "a_1"}]}},
    ],
    ids=lambda body: next(iter(body)),
)
def test_a_sparse_index_is_no_hint_of_a_strict_client(database: Database[Any], body: dict[str, Any]) -> None:
    sparse = {"key": {"a": 1}, "name": "a_1", "sparse": True}
    database.command({"createIndexes": "h", "indexes": [sparse, {"key": {"b": 1}, "name": "b_1"}]})
    database.command({"find": "h", "filter": {"b": 1}, "hint": "b_1", **STRICT})
    reply = database.command({**body, **STRICT}, check=False)
    error = reply["writeErrors"][0] if "writeErrors" in reply else reply
    assert error["code"] == 2 and error["errmsg"].endswith("hint provided does not correspond to an existing index")
    assert "writeErrors" not in database.command(body)


@pytest.mark.parametrize(
    "body",
    [
        {"find": "s", "filter": {"a": 1}},
        {"find": "s", "filter": {"$or": [{"a": 1}, {"a": 2}]}},
        {"aggregate": "s", "pipeline": [{"$match": {"a": {"$gt": 1}}}, {"$group": {"_id": "$a"}}], "cursor": {}},
        {"update": "s", "updates": [{"q": {"a": 1}, "u": SET}]},
        {"delete": "s", "deletes": [{"q": {"a": 1}, "limit": 0}]},
    ],
    ids=lambda body: next(iter(body)),
)
def test_a_strict_client_s_plan_has_no_sparse_index(database: Database[Any], body: dict[str, Any]) -> None:
    database.s.create_index("a", sparse=True)
    explained = {"explain": body, "verbosity": "queryPlanner"}
    assert "a_1" in str(database.command(explained))
    assert "a_1" not in str(database.command({**explained, **STRICT}))
    assert "a_1" in str(database.command(explained))
