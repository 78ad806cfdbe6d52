"""The largest results of a pipeline: values that share their parts, texts, joins, pipelines in each other, names."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import limits
from headrace.commands.catalog import create
from headrace.query.operation_memory import size_above
from headrace.testing.driven import DrivenServer
from headrace.values.bson import encode

MEGABYTE = 1024 * 1024


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 1, "a": "x", "n": [1, 2, 3]}, {"_id": 2, "a": "y"}]})
        yield server


def aggregate(server: DrivenServer, *pipeline: dict[str, Any], collection: str = "c") -> Any:
    return server.run("t", {"aggregate": collection, "pipeline": list(pipeline), "cursor": {}})


DOUBLED = [{"$set": {"a": ["$a", "$a"]}}] * 40
ROOTS = [{"$project": {"x": "$$ROOT", "y": "$$ROOT"}}] * 40


@pytest.mark.parametrize("doubled", [DOUBLED, ROOTS], ids=["arrays", "roots"])
@pytest.mark.parametrize(
    "rest",
    [
        [], [{"$sort": {"a": 1}}], [{"$group": {"_id": "$a"}}], [{"$group": {"_id": None, "all": {"$push": "$$ROOT"}}}],
        [{"$facet": {"f": [], "g": []}}], [{"$out": "goal"}], [{"$merge": "goal"}], [{"$match": {"a": [1]}}],
    ],
    ids=["read", "sorted", "grouped", "pushed", "in a facet", "put out", "merged", "matched"],
)  # fmt: skip
def test_a_shared_value_is_refused_before_it_is_encoded(
    server: DrivenServer, doubled: list[dict[str, Any]], rest: list[dict[str, Any]]
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reply = aggregate(server, {"$limit": 1}, *doubled, *rest)
    assert reply.get("code") in (10334, 146), reply
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150 * 1024


def test_an_update_by_a_pipeline_may_not_make_one_either(server: DrivenServer) -> None:
    copies = [{"$set": {"a": "x" * MEGABYTE}}, {"$set": {f"f{number}": "$a" for number in range(20)}}]
    for change, code in ((DOUBLED[:25], 146), (copies, 17419)):
        reply = server.run("t", {"update": "c", "updates": [{"q": {"_id": 1}, "u": change}]})
        assert reply["writeErrors"][0]["code"] == code
    assert server.must("t", {"find": "c", "filter": {"_id": 1}})["cursor"]["firstBatch"][0]["a"] == "x"


def test_what_is_measured_is_a_lower_bound(server: DrivenServer) -> None:
    for document in (
        {}, {"a": None}, {"a": [1, "é", True, b"abc", {"b": []}]}, {"": {"": [[[]]]}}, {"a" * 50: ["b" * 100] * 50},
    ):  # fmt: skip
        assert size_above(len(encode(document)), document) == 0
    shared = ["x" * 100] * 10
    assert size_above(900, {"a": shared}) == 3 + 10 * 103
    assert size_above(100_000, {"a": [[shared] * 100] * 100}) == 3 + 100 * 3 + 10_000 * (3 + 10 * 103)


def test_a_field_shown_many_times_is_refused_as_too_large(server: DrivenServer) -> None:
    server.must("t", {"insert": "large", "documents": [{"_id": 1, "t": "x" * MEGABYTE}]})
    fields = {f"f{number}": "$t" for number in range(2000)}
    assert server.run("t", {"find": "large", "projection": fields})["code"] == 10334
    assert aggregate(server, {"$project": fields}, collection="large")["code"] == 10334


def test_a_map_is_limited_by_what_it_holds(server: DrivenServer) -> None:
    text = {"$reduce": {"input": {"$range": [0, 20]}, "initialValue": "x", "in": {"$concat": ["$$value", "$$value"]}}}
    each = {"$concat": ["$$text", {"$toString": "$$this"}]}
    mapped = {"$map": {"input": {"$range": [0, 1000]}, "as": "this", "in": each}}
    let = {"$let": {"vars": {"text": text}, "in": {"$size": mapped}}}
    reply = aggregate(server, {"$project": {"a": let}})
    assert (reply["code"], reply["errmsg"].split(": ")[-1]) == (
        146, "$map would use too much memory and cannot spill"
    )  # fmt: skip


def test_a_text_is_smaller_than_a_document(server: DrivenServer) -> None:
    server.must("t", {"insert": "large", "documents": [{"_id": 1, "t": "é" * (4 * MEGABYTE)}]})
    longest = {"$project": {"n": {"$strLenBytes": {"$concat": ["$t", {"$substrCP": ["$t", 1, 5 * MEGABYTE]}]}}}}
    reply = aggregate(server, longest, collection="large")
    assert reply["cursor"]["firstBatch"] == [{"_id": 1, "n": 16 * MEGABYTE - 2}]
    reply = aggregate(server, {"$project": {"n": {"$strLenBytes": {"$concat": ["$t", "$t"]}}}}, collection="large")
    assert (reply["code"], reply["codeName"]) == (16493, "Location16493")
    for text, code in (("x" * (16 * MEGABYTE - 1), None), ("x" * 16 * MEGABYTE, 16493), ("é" * 8 * MEGABYTE, 16493)):
        assert aggregate(server, {"$project": {"n": {"$strLenBytes": text}}}).get("code") == code


def test_what_joins_with_a_document_is_limited(server: DrivenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOOKUP_BYTES_MAX", 50_000)
    server.must("t", {"insert": "other", "documents": [{"_id": n, "k": 1, "t": "x" * 1000} for n in range(100)]})
    server.must("t", {"insert": "one", "documents": [{"_id": 1, "k": 1}]})
    message = "Total size of documents in other matching pipeline's $lookup stage exceeds 50000 bytes"
    fields = {"from": "other", "localField": "k", "foreignField": "k", "as": "o"}
    for spec in (fields, {"from": "other", "pipeline": [], "as": "o"}, {**fields, "pipeline": [{"$match": {}}]}):
        reply = aggregate(server, {"$lookup": spec}, {"$project": {"_id": 1}}, collection="one")
        assert (reply["code"], reply["errmsg"].rpartition(" :: caused by :: ")[2]) == (4568, message)
    unwound = [{"$lookup": fields}, {"$unwind": "$o"}, {"$count": "n"}]
    assert aggregate(server, *unwound, collection="one")["cursor"]["firstBatch"] == [{"n": 100}]


def test_what_a_graph_reaches_is_limited_and_counts(server: DrivenServer) -> None:
    documents = [{"_id": n, "next": n + 1, "t": "x" * 1000} for n in range(2000)]
    server.must("t", {"insert": "g", "documents": documents})
    spec = {"from": "g", "startWith": 0, "connectFromField": "next", "connectToField": "_id", "as": "all"}
    assert len(aggregate(server, {"$limit": 1}, {"$graphLookup": spec})["cursor"]["firstBatch"][0]["all"]) == 2000
    server.engine.memory.bytes_max = MEGABYTE
    assert aggregate(server, {"$limit": 1}, {"$graphLookup": spec})["code"] == 146
    assert server.engine.memory.used == 0


def nested(stage: str, count: int) -> dict[str, Any]:
    inner: list[dict[str, Any]] = []
    for _ in range(count):
        inner = [{stage: {("coll" if stage == "$unionWith" else "from"): "c", "pipeline": inner, "as": "x"}}]
        if stage == "$unionWith":
            del inner[0][stage]["as"]
    return inner[0]


@pytest.mark.parametrize("stage", ["$lookup", "$unionWith"])
def test_pipelines_in_each_other_are_limited_as_by_mongodb(server: DrivenServer, stage: str) -> None:
    empty = [{"$match": {"_id": 0}}]
    assert aggregate(server, *empty, nested(stage, 20), collection="nothing")["ok"] == 1
    reply = aggregate(server, nested(stage, 21))
    assert (reply["code"], reply["codeName"], reply["errmsg"]) == (
        232, "MaxSubPipelineDepthExceeded", "Maximum number of nested sub-pipelines exceeded. Limit is 20",
    )  # fmt: skip


def test_views_that_look_each_other_up_end_with_an_error(server: DrivenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    lookup = {"from": "second", "localField": "_id", "foreignField": "_id", "as": "x"}
    server.must("t", {"create": "first", "viewOn": "c", "pipeline": [{"$lookup": lookup}]})
    second = {"viewOn": "c", "pipeline": [{"$lookup": {**lookup, "from": "first"}}]}
    assert server.run("t", {"create": "second", **second})["code"] == 5
    with monkeypatch.context() as patched:  # as an earlier release stored it
        patched.setattr(create, "check_no_cycle", lambda *_: None)
        server.must("t", {"create": "second", **second})
    assert server.run("t", {"find": "first"})["code"] == 232


@pytest.mark.parametrize(
    "change",
    [{"viewOn": "v"}, {"viewOn": "w"}, {"pipeline": [{"$unionWith": "v"}]},
     {"pipeline": [{"$facet": {"a": [{"$unionWith": {"coll": "c", "pipeline": [{"$unionWith": "w"}]}}]}}]}],
)  # fmt: skip
def test_a_view_cannot_be_changed_to_read_itself(server: DrivenServer, change: dict[str, Any]) -> None:
    server.must("t", {"create": "v", "viewOn": "c", "pipeline": []})
    server.must("t", {"create": "w", "viewOn": "v", "pipeline": []})
    assert server.run("t", {"collMod": "v", **change})["code"] == 5
    server.must("t", {"collMod": "v", "pipeline": [None, {"$match": {"a": "x"}}, None]})
    assert [item["_id"] for item in server.must("t", {"find": "w"})["cursor"]["firstBatch"]] == [1]


@pytest.mark.parametrize("name", ["a\0b", "\0", ".a", ""])
def test_bad_names_are_refused_wherever_a_collection_is_named(server: DrivenServer, name: str) -> None:
    lookup = {"localField": "a", "foreignField": "a", "as": "x"}
    graph = {"startWith": 1, "connectFromField": "a", "connectToField": "b", "as": "x"}
    stages = [
        {"$lookup": {"from": name, **lookup}}, {"$lookup": {"from": name, "pipeline": [], "as": "x"}},
        {"$graphLookup": {"from": name, **graph}}, {"$unionWith": name}, {"$unionWith": {"coll": name}},
        {"$out": name}, {"$out": {"db": "t", "coll": name}}, {"$merge": name}, {"$merge": {"into": name}},
    ]  # fmt: skip
    commands: list[dict[str, Any]] = [{"aggregate": "c", "pipeline": [stage], "cursor": {}} for stage in stages]
    commands += [
        {"find": name}, {"aggregate": name, "pipeline": [], "cursor": {}}, {"count": name},
        {"distinct": name, "key": "a"},
        {"insert": name, "documents": [{"a": 1}]}, {"update": name, "updates": [{"q": {}, "u": {"$set": {"a": 1}}}]},
        {"delete": name, "deletes": [{"q": {}, "limit": 0}]}, {"findAndModify": name, "remove": True},
        {"create": name}, {"create": "v", "viewOn": name}, {"drop": name}, {"collMod": name},
        {"createIndexes": name, "indexes": [{"key": {"a": 1}, "name": "a"}]}, {"dropIndexes": name, "index": "a"},
        {"listIndexes": name}, {"collStats": name}, {"validate": name},
    ]  # fmt: skip
    replies = {str(command): server.run("t", command) for command in commands}
    codes = {command: (reply.get("code"), reply.get("errmsg")) for command, reply in replies.items()}
    others = {command: code[0] for command, code in codes.items() if code[0] != 73}
    assert set(others.values()) == (set() if name else {5786800}), others  # `$merge` says it in its own words
    if "\0" in name:
        assert {code[1] for code in codes.values()} == {"namespaces cannot have embedded null characters"}
    if name == ".a":
        assert {code[1] for code in codes.values()} == {"Collection names cannot start with '.': .a"}
    for fields in ({"renameCollection": "t.c", "to": f"t.{name}"}, {"renameCollection": f"t.{name}", "to": "t.d"}):
        assert server.run("admin", fields)["code"] == 73


def test_names_of_databases_hold_no_null_characters(server: DrivenServer) -> None:
    for command in ({"find": "c"}, {"insert": "c", "documents": [{}]}, {"dropDatabase": 1}, {"listCollections": 1}):
        reply = server.run("t\0u", command)
        assert (reply["code"], reply["errmsg"]) == (73, "database names cannot have embedded null characters")
