"""Codes of errors of stages and commands: each wrong argument has the number that release 8.2 gives it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, ObjectId, Regex, Timestamp
from bson.raw_bson import RawBSONDocument

from headrace.testing.driven import DrivenServer


@pytest.fixture(scope="module")
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        document = {"_id": 1, "a": 1, "s": "abc", "arr": [1, 2, 3], "arrd": [{"x": 1}], "n": None}
        server.must("t", {"insert": "c", "documents": [document]})
        server.must("t", {"create": "cap", "capped": True, "size": 4096})
        server.must("t", {"createIndexes": "u", "indexes": [{"key": {"k": 1}, "name": "k_1", "unique": True}]})
        sparse = {"key": {"k": 1}, "name": "k_1", "unique": True, "sparse": True}
        server.must("t", {"createIndexes": "sparse", "indexes": [sparse]})
        yield server


def agg(*pipeline: Any, coll: Any = "c", db: str = "t", **more: Any) -> tuple[dict[str, Any], str]:
    return {"aggregate": coll, "pipeline": list(pipeline), "cursor": {}, **more}, db


def code(server: DrivenServer, body: dict[str, Any], db: str = "t") -> int:
    reply = server.run(db, body)
    assert isinstance(reply, dict)
    return int((reply["writeErrors"][0] if reply.get("writeErrors") else reply).get("code", 0))


CASES: list[tuple[tuple[dict[str, Any], str], int]] = [
    (agg({"$out": "cap"}), 17152),
    (agg({"$out": "system.x"}), 17385),
    (agg({"$out": {"db": "admin", "coll": "x"}}), 31321),
    (agg({"$out": {"db": "config", "coll": "x"}}), 31321),
    (agg({"$out": {"db": "local", "coll": "x"}}), 31321),
    (agg({"$merge": "system.x"}), 31319),
    (agg({"$merge": {"into": {"db": "admin", "coll": "x"}}}), 31320),
    (agg({"$merge": {"into": {"db": "local", "coll": "x"}}}), 31320),
    (agg({"$merge": ""}), 73),
    (agg({"$merge": {"into": ""}}), 5786800),
    (agg({"$merge": {"into": {"db": "x"}}}), 5786801),
    (agg({"$merge": {"into": {"db": "t", "coll": None}}}), 5786801),
    (agg({"$project": {"k": "$arr"}}, {"$merge": {"into": "u", "on": "k"}}), 51185),
    (agg({"$merge": {"into": "u", "whenMatched": "replace", "whenNotMatched": "fail"}}), 13113),
    (agg({"$merge": {"into": "u", "whenMatched": "fail", "whenNotMatched": "discard"}}), 51181),
    (agg({"$merge": {"into": "u", "whenMatched": "merge", "let": {"a": 1}}}), 51199),
    (agg({"$merge": {"into": "u", "let": {"new": 1}, "whenMatched": [{"$set": {"a": 1}}]}}), 51273),
    (agg({"$sort": {"a": {"x": 1}}}), 17312),
    (agg({"$sort": {"a": {"$meta": "x"}}}), 31138),
    (agg({"$sort": {"a": "x"}}), 15974),
    (({"distinct": "c", "key": "a\0b"}, "t"), 31032),
    (({"distinct": "c", "key": ""}, "t"), 0),
    (agg({"$collStats": {"count": {"a": 1}}}), 31170),
    (agg({"$collStats": 1}), 5447000),
    (({"find": "c", "projection": {"a": 0, "b": "lit"}}, "t"), 31310),
    (({"find": "c", "projection": {"a": 0, "b": {"$literal": 1}}}, "t"), 31252),
    (({"find": "c", "filter": {"arr": 1}, "projection": {"arr.$.b": 1}}, "t"), 31394),
    (({"find": "c", "filter": {"arr": 1}, "projection": {"arrd": {"$elemMatch": {"x": 1}}, "arr.$": 1}}, "t"), 31256),
    (agg({"$match": {}}, {"$geoNear": {"near": [1, 1], "distanceField": "d"}}), 40603),
    (agg({"$planCacheStats": {}}, coll="nope"), 50933),
    (({"find": "c", "filter": {"s": {"$options": "i", "$regex": Regex("a", "i")}}}, "t"), 51074),
    (({"find": "c", "filter": {"s": {"$regex": Regex("a", "i"), "$options": "i"}}}, "t"), 51075),
    (({"find": "c", "filter": {"s": {"$options": "i"}}}, "t"), 2),
    (agg(let={"NOW": 1}), 4738901),
    (agg(let={"ROOT": 1}), 9),
    (agg(let={"a": "$a"}), 4890500),
    (agg(let={"a": "$$ROOT"}), 4890500),
    (({"find": "c", "let": {"a": "$a"}}, "t"), 4890500),
    (({"find": "c", "let": {"NOW": "x"}}, "t"), 4738901),
    (
        (
            {"aggregate": 1, "pipeline": [{"$documents": []}], "cursor": {}, "collectionUUID": Binary(b"\1" * 16, 4)},
            "t",
        ),
        4928901,
    ),
    (({"dropDatabase": 2}, "zz"), 5255100),
    (({"dropDatabase": 1.0}, "zz"), 0),
    (agg({"$match": {"a": {"$near": [1, 1]}}}), 5626500),
    (agg({"$lookup": {"from": "c", "pipeline": [{"$match": {"a": {"$near": [1, 1]}}}], "as": "x"}}), 5626500),
    (({"createIndexes": "c", "indexes": [{"key": {"$**": 1, "a.$**": 1}, "name": "w"}]}, "t"), 7246201),
    (({"createIndexes": "c", "indexes": [{"key": {"$**": "hashed"}, "name": "w"}]}, "t"), 67),
    (agg({"$group": {"_id": None, "x": {"$mergeObjects": "$a"}}}), 40400),
    (agg({"$group": {"_id": None, "x": {"$firstN": {"n": 0, "input": "$a"}}}}), 7548606),
    (agg({"$group": {"_id": None, "x": {"$firstN": {"n": "x", "input": "$a"}}}}), 7548606),
    (agg({"$group": {"_id": None, "x": {"$topN": {"n": -1, "sortBy": {"a": 1}, "output": "$a"}}}}), 7548606),
    (agg({"$group": {"_id": None, "x": {"$firstN": {"input": "$a"}}}}), 5787906),
    (agg({"$bucket": {"groupBy": "$a", "boundaries": [0, 5], "output": {"_id": {"$sum": 1}}}}), 15948),
    (agg({"$group": {"_id": None, "x": 1}}), 40234),
    (agg({"$group": {"_id": None, "a.b": {"$sum": 1}}}), 40235),
    (({"update": "c", "updates": [{"q": {}, "u": {"$set": {"a": 1}}, "c": {"x": 1}}]}, "t"), 51198),
    (agg({"$unionWith": {"coll": "c", "pipeline": [{"$out": "x"}]}}), 31441),
    (agg({"$merge": {"into": "sparse", "on": "k"}}), 51132),
    (agg({"$out": "$name"}), 20),
    (agg({"$out": "a" * 255}), 20),
    (agg({"$out": {"db": "a b", "coll": "x"}}), 73),
    (agg({"$merge": {"into": "u", "whenMatched": "keepExisting", "whenNotMatched": "fail"}}), 51181),
    (agg({"$merge": {"into": "u", "whenMatched": [{"$set": {"m": 1}}], "whenNotMatched": "discard"}}), 0),
    (agg({"$merge": {"into": "u", "whenMatched": []}}), 0),
    (({"find": "c", "filter": {"arr": 1}, "projection": {"arr.$": 1, "arrd": {"$elemMatch": {"x": 1}}}}, "t"), 31255),
    (agg(let={"a": "$$NOW"}), 51144),
    (agg(let={"a": {"$add": [1, 2]}, "b": {"$literal": "$x"}}), 0),
]


@pytest.mark.parametrize(("asked", "expected"), CASES, ids=range(len(CASES)))
def test_a_wrong_argument_has_its_number(server: DrivenServer, asked: Any, expected: int) -> None:
    assert code(server, *asked) == expected


def test_documents_are_put_into_buckets(server: DrivenServer) -> None:
    bucket = {"groupBy": "$a", "boundaries": [0, 5], "output": {"n": {"$sum": 1}}}
    reply = server.must("t", agg({"$bucket": bucket})[0])
    assert reply["cursor"]["firstBatch"] == [{"_id": 0, "n": 1}]


def test_a_database_is_dropped_by_the_number_one(server: DrivenServer) -> None:
    for value in (0, -1, 2, Int64(0), Int64(2**63 - 1), 2.0, 0.9, -0.99, math.nan, math.inf, -0.0, Decimal128("0.5"),
                  Decimal128("1.5"), Decimal128("-1.5"), Decimal128("1E+6144"), Decimal128("NaN")):  # fmt: skip
        assert code(server, {"dropDatabase": value}, "zz") == 5255100, value
    for value in ("x", True, [], {}, ObjectId(), Timestamp(1, 1), Binary(b"x"), Regex("x")):
        assert code(server, {"dropDatabase": value}, "zz") == 14, value
    assert code(server, {"dropDatabase": None}, "zz") == 40414
    for value in (1, Int64(1), 1.0, 1.9, Decimal128("1"), Decimal128("1.4"), Decimal128("0.6")):
        assert code(server, {"dropDatabase": value}, "zz") == 0, value


@pytest.mark.parametrize("command", ["find", "aggregate", "update", "delete"])
def test_let_defines_no_variable_of_the_server_and_reads_no_field(server: DrivenServer, command: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "aggregate": {"aggregate": "c", "pipeline": [], "cursor": {}},
        "delete": {"delete": "c", "deletes": [{"q": {"_id": 99}, "limit": 1}]},
        "find": {"find": "c"},
        "update": {"update": "c", "updates": [{"q": {"_id": 99}, "u": {"$set": {"z": 1}}}]},
    }
    for let, expected in (
        ({"NOW": 1}, 4738901), ({"CLUSTER_TIME": 1}, 4738901), ({"ROOT": 1}, 9), ({"REMOVE": 1}, 9), ({"A": 1}, 9),
        ({"a": "$x"}, 4890500), ({"a": {"$add": ["$x", 1]}}, 4890500), ({"a": "$$ROOT"}, 4890500),
        ({"a": 1, "b": [1, {"$add": [1, 2]}]}, 0),
    ):  # fmt: skip
        assert code(server, {**bodies[command], "let": let}) == expected, let


def test_an_update_may_fill_fields_with_values(server: DrivenServer) -> None:
    def updated(how: Any) -> dict[str, Any]:
        fill = {"$fill": {"output": {"n": how}}}
        return {"update": "c", "updates": [{"q": {"_id": 1, "n": None}, "u": [fill]}]}

    assert code(server, updated({"method": "locf"})) == 72
    assert code(server, updated({"value": 5})) == 0
    (found,) = server.must("t", {"find": "c", "filter": {"n": 5}})["cursor"]["firstBatch"]
    assert found["_id"] == 1
    server.must("t", {"update": "c", "updates": [{"q": {}, "u": {"$set": {"n": None}}}]})


def test_a_list_is_no_argument_of_an_accumulator_but_one_of_a_window_function(server: DrivenServer) -> None:
    for name in ("$sum", "$push", "$count", "$topN", "$add", "$nope"):
        assert code(server, *agg({"$group": {"_id": None, "r": {name: [1, 2]}}})) == 40237
    window = {"$setWindowFields": {"sortBy": {"a": 1}, "output": {"r": {"$push": ["$a", "$s"]}, "s": {"$sum": [1, 2]}}}}
    found = server.must("t", agg(window)[0])["cursor"]["firstBatch"][0]
    assert (found["r"], found["s"]) == ([[1, "abc"]], 0)
    for name, expected in (("$firstN", 5787801), ("$topN", 5788001)):
        assert code(server, *agg({"$setWindowFields": {"output": {"r": {name: [1, 2]}}}})) == expected


def test_a_lookup_by_empty_names_of_fields_is_one_without_them(server: DrivenServer) -> None:
    empty = {"localField": "", "foreignField": ""}
    lookup = {"$lookup": {"from": "c", **empty, "pipeline": [{"$project": {"s": 1}}], "as": "r"}}
    assert server.must("t", agg(lookup)[0])["cursor"]["firstBatch"][0]["r"] == [{"_id": 1, "s": "abc"}]
    for fields in (empty, {"localField": "a", "foreignField": "", "pipeline": []}):
        assert code(server, *agg({"$lookup": {"from": "c", **fields, "as": "r"}})) == 9


def test_a_sort_reads_its_directions_as_integers_and_does_not_count_metadata(server: DrivenServer) -> None:
    for direction in (1.999, -1.999, Decimal128("0.51"), Decimal128("-1.49")):
        assert code(server, *agg({"$sort": {"a": direction}})) == 0, direction
    for direction in (0.9, 2.0, Decimal128("0.5"), Decimal128("1.5"), math.nan):
        assert code(server, *agg({"$sort": {"a": direction}})) == 15975, direction
    fields = {f"f{number}": 1 for number in range(32)}
    score = {"$meta": "searchScore"}  # which no document has
    assert code(server, *agg({"$sort": {**fields, "r": {"$meta": "randVal"}, "s": score}}, {"$set": {"s": score}})) == 0
    assert code(server, *agg({"$sort": {**fields, "g": 1}})) == 13103


def test_a_sort_that_names_a_field_twice_is_refused(server: DrivenServer) -> None:
    names = [b"\x10" + name + b"\0\1\0\0\0" for name in (b"a", b"b", b"a")]
    for count, expected in ((2, 0), (3, 7472500)):
        sort = b"".join(names[:count])
        raw = RawBSONDocument((len(sort) + 5).to_bytes(4, "little") + sort + b"\0")
        assert code(server, *agg({"$match": {}}, {"$sort": raw})) == expected


def test_the_n_of_an_accumulator_may_depend_on_the_key_of_the_group(server: DrivenServer) -> None:
    games = {"$documents": [{"g": g, "s": s} for g in ("A", "B") for s in (3, 1, 2)]}
    n = {"$cond": [{"$eq": ["$k", "B"]}, 1, 2]}  # as in MongoDB, the fields are those of the key
    fields = {"f": {"$firstN": {"n": n, "input": "$s"}}, "t": {"$topN": {"n": n, "sortBy": {"s": 1}, "output": "$s"}}}
    reply = server.run("t", agg(games, {"$group": {"_id": {"k": "$g"}, **fields}}, coll=1)[0])
    assert isinstance(reply, dict)
    assert reply["cursor"]["firstBatch"] == [
        {"_id": {"k": "A"}, "f": [3, 1], "t": [1, 2]},
        {"_id": {"k": "B"}, "f": [3], "t": [1]},
    ]
    assert code(server, *agg({"$group": {"_id": "$a", "f": {"$firstN": {"n": "$_id", "input": "$a"}}}})) == 7548606


@pytest.mark.parametrize("name", ["$firstN", "$lastN", "$minN", "$maxN"])
def test_the_n_of_an_accumulator(server: DrivenServer, name: str) -> None:
    for value in (0, -1, 1.5, "x", None, True, [], math.nan, math.inf, Decimal128("0")):
        group = {"$group": {"_id": None, "r": {name: {"n": value, "input": "$a"}}}}
        assert code(server, *agg(group)) == 7548606, value
    for value in (1, Int64(2), 1.0, Decimal128("3")):
        assert code(server, *agg({"$group": {"_id": None, "r": {name: {"n": value, "input": "$a"}}}})) == 0
