"""`$score`, `$rankFusion` and `$scoreFusion`, and `{$meta: "score"}`."""

from __future__ import annotations

import math
import random
from typing import Any

import pymongo
import pytest
from pymongo.errors import OperationFailure

import headrace

META = {"$project": {"s": {"$meta": "score"}}}
BOTH = {"$project": {"s": {"$meta": "score"}, "t": {"$meta": "textScore"}}}
DETAILS = {"$project": {"s": {"$meta": "score"}, "d": {"$meta": "scoreDetails"}}}


@pytest.fixture(scope="module")
def db() -> Any:
    with headrace.Server() as server, pymongo.MongoClient(server.uri) as client:
        client.t.c.insert_many(
            [
                {"_id": 0, "x": 3, "y": 1, "text": "red fish", "at": [0, 0]},
                {"_id": 1, "x": 1, "y": 2, "text": "blue fish fish", "at": [3, 3]},
                {"_id": 2, "x": 2, "y": 2, "text": "bird", "at": [1, 1]},
            ]
        )
        client.t.c.create_index({"text": "text"})
        client.t.c.create_index({"at": "2d"})
        client.t.create_collection("v", viewOn="c", pipeline=[{"$match": {"_id": {"$gt": 0}}}])
        yield client.t


def rank(pipelines: Any, **more: Any) -> dict[str, Any]:
    return {"$rankFusion": {"input": {"pipelines": pipelines}, **more}}


def fuse(pipelines: Any, normalization: str = "none", **more: Any) -> dict[str, Any]:
    return {"$scoreFusion": {"input": {"pipelines": pipelines, "normalization": normalization}, **more}}


def scores(source: Any, *pipeline: dict[str, Any]) -> list[tuple[Any, Any]]:
    return [(each["_id"], each["s"]) for each in source.aggregate([*pipeline, META])]


def code_of(source: Any, *pipeline: dict[str, Any]) -> int:
    with pytest.raises(OperationFailure) as caught:
        list(source.aggregate(list(pipeline)))
    return caught.value.code or 0


def test_a_score_is_normalized_and_weighted(db: Any) -> None:
    in_order = {"$sort": {"_id": 1}}
    assert scores(db.c, in_order, {"$score": {"score": "$x"}}) == [(0, 3.0), (1, 1.0), (2, 2.0)]
    halved = {"$score": {"score": {"$multiply": ["$x", 2]}, "normalization": "minMaxScaler", "weight": 0.5}}
    assert scores(db.c, in_order, halved) == [(0, 0.5), (1, 0.0), (2, 0.25)]
    sigmoid = {"$score": {"score": "$x", "normalization": "sigmoid"}}
    assert scores(db.c, in_order, sigmoid)[1] == (1, 1 / (1 + math.exp(-1.0)))


def test_a_later_score_reads_an_earlier_one(db: Any) -> None:
    again = {"$score": {"score": {"$add": [{"$meta": "score"}, 1]}, "normalization": "minMaxScaler"}}
    found = scores(db.c, {"$score": {"score": "$x"}}, again, {"$sort": {"any": {"$meta": "score"}}}, {"$limit": 2})
    assert found == [(0, 1.0), (2, 0.5)]
    found = scores(db.c, {"$score": {"score": "$x"}}, {"$sort": {"y": 1, "_id": 1}}, {"$skip": 1})
    assert found == [(1, 1.0), (2, 2.0)]


def test_a_text_score_is_the_score(db: Any) -> None:
    search = {"$match": {"$text": {"$search": "fish"}}}
    (best, other) = db.c.aggregate([search, {"$sort": {"s": {"$meta": "score"}}}, BOTH])
    assert best["_id"] == 1 and best["s"] == best["t"] > other["s"] == other["t"]
    doubled = {"$score": {"score": {"$multiply": [{"$meta": "textScore"}, 2]}, "normalization": "minMaxScaler"}}
    found = list(db.c.aggregate([search, doubled, BOTH]))
    assert {each["_id"]: each["s"] for each in found} == {0: 0.0, 1: 1.0}
    assert {each["_id"]: each["t"] for each in found} == {1: best["t"], 0: other["t"]}


def test_metadata_reaches_the_pipelines_of_a_facet(db: Any) -> None:
    facet = {"$facet": {"a": [META, {"$limit": 1}], "b": [{"$sort": {"s": {"$meta": "score"}}}], "c": [META]}}
    (result,) = db.c.aggregate([{"$sort": {"_id": 1}}, {"$score": {"score": "$x"}}, facet])
    assert result["a"] == [{"_id": 0, "s": 3.0}] and len(result["c"]) == 3
    assert [each["_id"] for each in result["b"]] == [0, 2, 1]
    assert all(key.isprintable() for each in result["b"] for key in each)


def test_details_of_a_score(db: Any) -> None:
    stage = {"$score": {"score": {"$add": ["$x", 1]}, "weight": 0.5, "scoreDetails": True}}
    (found,) = db.c.aggregate([{"$match": {"_id": 0}}, stage, DETAILS])
    assert found["s"] == 2.0
    assert {**found["d"], "description": ""} == {
        "value": 2.0, "description": "", "rawScore": 4.0, "normalization": "none", "weight": 0.5,
        "expression": "{ string: { $add: [ '$x', 1 ] } }", "details": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (1, 9), ({}, 40414), ({"score": 1, "z": 1}, 40415), ({"score": 1, "normalization": "z"}, 2),
        ({"score": 1, "weight": 1.5}, 2), ({"score": 1, "weight": -1}, 2), ({"score": 1, "weight": "x"}, 14),
        ({"score": 1, "scoreDetails": 1}, 14), ({"score": "$text"}, 14), ({"score": "$missing"}, 14),
        ({"score": {"$meta": "score"}}, 40218),
    ],
)  # fmt: skip
def test_invalid_scores(db: Any, spec: Any, code: int) -> None:
    assert code_of(db.c, {"$score": spec}) == code


def test_ranks_are_fused(db: Any) -> None:
    a, b = [{"$sort": {"x": 1}}, {"$limit": 2}], [{"$sort": {"y": -1}}]
    expected = [(1, 1 / 61 + 2 / 61), (2, 1 / 62 + 2 / 61), (0, 2 / 63)]  # 1 and 2 have the same rank in b
    found = scores(db.c, rank({"a": a, "b": b}, combination={"weights": {"b": 2}}))
    assert [each for each, _ in found] == [1, 2, 0]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected])
    first = next(db.c.aggregate([rank({"a": a, "b": b})]))
    assert first == {"_id": 1, "x": 1, "y": 2, "text": "blue fish fish", "at": [3, 3]}


def test_searches_are_fused(db: Any) -> None:
    near = [{"$geoNear": {"near": [0, 0]}}]
    text = [{"$match": {"$text": {"$search": "fish"}}}, {"$sort": {"s": {"$meta": "textScore"}}}]
    stage = rank({"near": near, "text": text}, scoreDetails=True)
    found = {each["_id"]: each for each in db.c.aggregate([stage, DETAILS])}
    assert list(found) == [0, 1, 2]
    assert [each["s"] for each in found.values()] == pytest.approx([1 / 61 + 1 / 62, 1 / 63 + 1 / 61, 1 / 62])
    assert found[2]["d"]["details"] == [
        {"inputPipelineName": "near", "rank": 2, "weight": 1.0, "details": []},
        {"inputPipelineName": "text", "rank": "NA"},
    ]
    detail = found[1]["d"]["details"][1]
    assert list(detail) == ["inputPipelineName", "rank", "weight", "value", "details"] and detail["value"] > 1
    assert found[1]["d"]["value"] == found[1]["s"]


def test_scores_are_fused(db: Any) -> None:
    inputs = {"a": [{"$score": {"score": "$x"}}, {"$match": {"_id": {"$lt": 2}}}], "b": [{"$score": {"score": "$y"}}]}
    assert scores(db.c, fuse(inputs)) == [(0, 2.0), (1, 1.5), (2, 1.0)]
    assert scores(db.c, fuse(inputs, combination={"weights": {"b": 3}})) == [(1, 3.5), (0, 3.0), (2, 3.0)]
    assert scores(db.c, fuse(inputs, "minMaxScaler")) == [(0, 0.5), (1, 0.5), (2, 0.5)]
    expression = {"$subtract": [{"$multiply": ["$$a", "$$b"]}, "$x"]}
    stage = fuse(inputs, combination={"method": "expression", "expression": expression}, scoreDetails=True)
    found = list(db.c.aggregate([stage, DETAILS]))
    assert [(each["_id"], each["s"]) for each in found] == [(1, 1.0), (0, 0.0), (2, -2.0)]
    details = found[2]["d"]
    assert details["combination"] == {
        "method": "custom expression",
        "expression": "{ string: { $subtract: [ { $multiply: [ '$$a', '$$b' ] }, '$x' ] } }",
    }
    assert details["details"] == [
        {"inputPipelineName": "a", "inputPipelineRawScore": 0, "weight": 1.0, "value": 0},
        {"inputPipelineName": "b", "inputPipelineRawScore": 2.0, "weight": 1.0, "value": 2.0, "details": []},
    ]


def test_fusions_on_views_in_transactions_and_explained(db: Any) -> None:
    stage = rank({"a": [{"$sort": {"x": -1}}]})
    assert [each for each, _ in scores(db.v, stage)] == [2, 1]
    assert scores(db.none, stage) == []
    with db.client.start_session() as session, session.start_transaction():
        db.c.insert_one({"_id": 9, "x": 9}, session=session)
        assert next(db.c.aggregate([stage], session=session))["_id"] == 9
        session.abort_transaction()
    explained = db.command("aggregate", "v", pipeline=[stage], explain=True)
    assert [list(each) for each in explained["stages"]] == [["$rankFusion"]]
    list(db.c.aggregate([stage, META, {"$out": "fused"}]))
    assert db.fused.count_documents({}) == 3
    assert [each for each, _ in scores(db.c, stage, {"$unionWith": "none"}, {"$score": {"score": 1}})] == [0, 2, 1]


SORTED = [{"$sort": {"x": 1}}]
SCORED = [{"$score": {"score": "$x"}}]


@pytest.mark.parametrize(
    ("stage", "code"),
    [
        ({"$rankFusion": 1}, 9), ({"$rankFusion": {}}, 40414), ({"$rankFusion": {"input": {}}}, 40414),
        ({"$rankFusion": {"input": {"pipelines": {"a": SORTED}}, "z": 1}}, 40415), (rank({"a": 1}), 14),
        (rank({"a": []}), 9834300), (rank({"a": [rank({"b": SORTED})]}), 10473002), (rank({"a": SCORED}), 10614800),
        (rank({"a": [{"$match": {}}]}), 9191100), (rank({"a": [*SORTED, {"$unset": "x"}]}), 9191103),
        (rank({"a": [{"$geoNear": {"near": [0, 0], "distanceField": "d"}}]}), 9191103), (rank({"$a": SORTED}), 16410),
        (rank({"a.b": SORTED}), 16412), (rank({"": SORTED}), 15998), (rank({"a": [{"$nope": 1}]}), 40324),
        (rank({"a": SORTED}, combination={"weights": {"a": "x"}}), 13118),
        (rank({"a": SORTED}, combination={"weights": {"a": -1}}), 9460300),
        (rank({"a": SORTED}, combination={"weights": {"a": 1, "b": 1}}), 9460301),
        (rank({"a": SORTED}, combination={"weights": {"b": 1}}), 9967500), (rank({"a": SORTED}, scoreDetails=1), 14),
        ({"$scoreFusion": {"input": {"pipelines": {"a": SCORED}}}}, 40414), (fuse({"a": SCORED}, "z"), 2),
        (fuse({"a": []}), 9402503), (fuse({"a": [rank({"b": SORTED})]}), 10473003), (fuse({"a": SORTED}), 9402500),
        (fuse({"a": [*SCORED, {"$unset": "x"}]}), 9402502),
        (fuse({"a": SCORED}, combination={"method": "sum"}), 2),
        (fuse({"a": SCORED}, combination={"method": "expression"}), 10017300),
        (fuse({"a": SCORED}, combination={"method": "avg", "expression": 1}), 10017300),
        (fuse({"a": SCORED}, combination={"method": "expression", "expression": 1, "weights": {}}), 10017301),
        (fuse({"a": SCORED}, combination={"method": "expression", "expression": "$text"}), 14),
        (fuse({"a": SCORED}, combination={"method": "expression", "expression": "$$z"}), 17276),
    ],
)  # fmt: skip
def test_invalid_fusions(db: Any, stage: Any, code: int) -> None:
    assert code_of(db.c, stage) == code


def test_places_where_no_fusion_may_be(db: Any) -> None:
    stage = rank({"a": SORTED})
    assert code_of(db.c, {"$match": {}}, stage) == 10170100
    assert code_of(db.c, stage, stage) == 10170100
    assert code_of(db.c, {"$facet": {"a": [stage]}}) == 40600
    assert code_of(db.c, {"$unionWith": {"coll": "c", "pipeline": [stage]}}) == 11178500
    assert code_of(db.c, {"$lookup": {"from": "c", "pipeline": [stage], "as": "a"}}) == 11178500
    assert code_of(db.c, rank({"a": SORTED}), {"$project": {"d": {"$meta": "scoreDetails"}}}) == 40218
    with pytest.raises(OperationFailure) as caught:
        db.create_collection("w", viewOn="c", pipeline=[stage])
    assert caught.value.code == 167
    db.create_collection("times", timeseries={"timeField": "t"})
    assert code_of(db.times, stage) == 10557301


@pytest.mark.parametrize("seed", range(20))
def test_fused_ranks_as_a_model_computes_them(db: Any, seed: int) -> None:
    chance = random.Random(seed)
    db.r.drop()
    rows = [{"_id": number, "x": chance.randrange(6), "y": chance.randrange(6)} for number in range(30)]
    db.r.insert_many(rows)
    total: dict[int, float] = {}
    pipelines, weights = {}, {}
    for name in "abc"[: chance.randint(1, 3)]:
        field, down, least = chance.choice("xy"), chance.choice((1, -1)), chance.randrange(5)
        pipelines[name] = [{"$match": {"x": {"$gte": least}}}, {"$sort": {field: down}}]
        weights[name] = chance.choice((0, 0.5, 1, 3))
        found = [row for row in rows if row["x"] >= least]
        for row in found:
            better = sum(1 for other in found if (other[field] - row[field]) * down < 0)
            total[row["_id"]] = total.get(row["_id"], 0) + weights[name] * (1 / (61 + better))
    got = scores(db.r, rank(pipelines, combination={"weights": weights}))
    assert dict(got) == pytest.approx(total)
    assert got == sorted(got, key=lambda each: (-each[1], each[0]))
