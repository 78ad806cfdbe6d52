"""`$text` in commands, `{$meta: "textScore"}` in projections, sorts and stages, explain, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Int64

from headrace import limits
from headrace.errors import CommandError
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

Json = dict[str, Any]
SCORE = {"$meta": "textScore"}
ARTICLES = [
    {"_id": 1, "subject": "coffee", "by": "xyz", "views": 50},
    {"_id": 2, "subject": "Coffee Shopping", "by": "efg", "views": 5},
    {"_id": 3, "subject": "Baking a cake", "by": "abc", "views": 90},
    {"_id": 4, "subject": "baking", "by": "xyz", "views": 100},
    {"_id": 5, "subject": "Café Con Leche", "by": "abc", "views": 200},
    {"_id": 6, "subject": "Сырники", "by": "jkl", "views": 80},
    {"_id": 7, "subject": "coffee and cream", "by": "efg", "views": 10},
    {"_id": 8, "subject": "Cafe con Leche", "by": "xyz", "views": 10},
]


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        server.must("t", {"createIndexes": "c", "indexes": [{"key": {"subject": "text"}, "name": "i"}]})
        server.must("t", {"insert": "c", "documents": ARTICLES})
        yield server


def text(search: str, **more: Any) -> Json:
    return {"$text": {"$search": search, **{f"${name}": value for name, value in more.items()}}}


def find(at: DrivenServer, spec: Json, **more: Any) -> list[Json]:
    batch: list[Json] = at.must("t", {"find": "c", "filter": spec, **more})["cursor"]["firstBatch"]
    return batch


def ids(at: DrivenServer, spec: Json, **more: Any) -> list[Any]:
    return [document["_id"] for document in find(at, spec, **more)]


def aggregate(at: DrivenServer, *stages: Json) -> list[Json]:
    batch: list[Json] = at.must("t", {"aggregate": "c", "pipeline": stages, "cursor": {}})["cursor"]["firstBatch"]
    return batch


def join(*pipeline: Json, source: str = "c", **more: Any) -> Json:
    return {"$lookup": {"from": source, "pipeline": [*pipeline], "as": "found", **more}}


def refused(at: DrivenServer, command: Json) -> int:
    with pytest.raises(CommandError) as error:
        at.must("t", command)
    code: int = error.value.code
    return code


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (text("coffee"), {1, 2, 7}), (text("bake coffee cake"), {1, 2, 3, 4, 7}), (text('"coffee shop"'), {2}),
        (text("coffee -shop"), {1, 7}), (text("leche", language="es"), {5, 8}), (text("сырники CAFÉS"), {5, 6, 8}),
        (text("Coffee", caseSensitive=True), {2}), (text('"Café Con"', caseSensitive=True), {5}),
        (text("CAFÉ", diacriticSensitive=True), {5}), (text("leches -cafés", diacriticSensitive=True), {8}),
        (text("the"), set()), (text("-coffee"), set()), (text(""), set()), (text("and", language="none"), set()),
        ({**text("coffee"), "views": {"$gt": 9}}, {1, 7}), ({"$and": [text("coffee"), {"_id": 2}]}, {2}),
    ],
)  # fmt: skip
def test_the_examples_of_the_manual(at: DrivenServer, spec: Json, found: set[int]) -> None:
    assert set(ids(at, spec)) == found


def test_scores_are_in_projections_and_sorts(at: DrivenServer) -> None:
    spec = text("cake")
    assert find(at, spec, projection={"score": SCORE})[0] == {**ARTICLES[2], "score": 0.75}
    assert find(at, spec, projection={"_id": 1, "s": SCORE}) == [{"_id": 3, "s": 0.75}]
    assert find(at, spec, projection={"by": 0, "views": 0, "s": SCORE}) == [
        {"_id": 3, "subject": "Baking a cake", "s": 0.75}
    ]
    assert find(at, spec, projection={"_id": 1, "s": {"$add": [SCORE, 1]}}) == [{"_id": 3, "s": 1.75}]
    by_score = {"score": SCORE, "views": 1}
    assert find(at, text("coffee bake"), sort=by_score, limit=3) == [ARTICLES[0], ARTICLES[3], ARTICLES[1]]
    assert ids(at, text("coffee bake"), sort={"views": 1, "x": SCORE}, skip=1) == [7, 1, 3, 4]
    key = find(at, text("coffee"), sort=by_score, projection={"_id": 1, "k": {"$meta": "sortKey"}})[0]
    assert key == {"_id": 1, "k": [1.0, 50]}
    shown = find(at, text("cake"), sort=by_score, showRecordId=True)[0]
    assert shown == {**ARTICLES[2], "$recordId": 3}


def test_without_a_sort_high_scores_come_first(at: DrivenServer) -> None:
    assert ids(at, text("coffee")) == [1, 7, 2]
    assert ids(at, text("leche coffee")) == [1, 7, 2, 8, 5]


def test_scores_go_through_a_pipeline(at: DrivenServer) -> None:
    match = {"$match": text("cake coffee")}
    grouped = aggregate(at, match, {"$group": {"_id": None, "sum": {"$sum": SCORE}, "all": {"$push": SCORE}}})
    assert grouped == [{"_id": None, "sum": 3.25, "all": [1.0, 0.75, 0.75, 0.75]}]
    stages = [
        {"$project": {"subject": 1}}, {"$sort": {"s": SCORE, "_id": 1}}, {"$unset": "subject"},
        {"$set": {"first": SCORE}}, {"$sort": {"_id": -1}}, {"$set": {"second": SCORE}}, {"$sample": {"size": 10}},
        {"$set": {"third": SCORE}},
        {"$setWindowFields": {"sortBy": {"_id": 1}, "output": {"n": {"$documentNumber": {}}}}},
        {"$project": {"_id": 1, "n": 1, "all": ["$first", "$second", "$third", SCORE]}},
    ]  # fmt: skip
    scores = {1: 1.0, 2: 0.75, 3: 0.75, 7: 0.75}
    assert aggregate(at, match, *stages) == [
        {"_id": key, "n": n, "all": [score] * 4} for n, (key, score) in enumerate(scores.items(), 1)
    ]
    assert aggregate(at, match, {"$sort": {"s": SCORE, "_id": 1}}, {"$limit": 2}) == [ARTICLES[0], ARTICLES[1]]
    root = {"$replaceRoot": {"newRoot": {"s": SCORE}}}
    unwound = aggregate(at, match, {"$sort": {"s": SCORE, "_id": 1}}, {"$unwind": "$by"}, root)
    assert unwound == [{"s": score} for score in scores.values()]
    assert aggregate(at, match, {"$count": "n"}) == [{"n": 4}]
    assert aggregate(at, match, {"$sortByCount": "$by"})[0] == {"_id": "efg", "count": 2}


def test_every_command_searches(at: DrivenServer) -> None:
    assert at.must("t", {"count": "c", "query": text("coffee")})["n"] == 3
    assert at.must("t", {"distinct": "c", "key": "by", "query": text("coffee")})["values"] == ["xyz", "efg"]
    modified = {"findAndModify": "c", "query": text("cake"), "update": {"$set": {"x": 1}}, "new": True}
    assert at.must("t", modified)["value"]["x"] == 1
    first = {"findAndModify": "c", "query": text("coffee shop"), "sort": {"s": SCORE}, "update": {"$set": {"y": 1}}}
    assert at.must("t", first)["value"]["_id"] == 2
    one = {"q": text("coffee shop"), "u": {"$set": {"z": 1}}, "sort": {"s": SCORE}}
    assert at.must("t", {"update": "c", "updates": [one]})["nModified"] == 1 and ids(at, {"z": 1}) == [2]
    update = {"q": text("coffee"), "u": {"$set": {"subject": "Black tea"}}, "multi": True}
    assert at.must("t", {"update": "c", "updates": [update]})["nModified"] == 3
    assert at.must("t", {"delete": "c", "deletes": [{"q": text("teas -green"), "limit": 0}]})["n"] == 3
    assert ids(at, text("tea coffee")) == []


def test_a_pipeline_in_a_join_begins_with_a_search_of_its_own(at: DrivenServer) -> None:
    at.must("t", {"insert": "d", "documents": [{"_id": 1, "by": "xyz"}, {"_id": 2, "by": "efg"}]})
    show = {"$project": {"s": SCORE}}
    searches = [{"$match": text("coffee cake")}, {"$sort": {"s": SCORE, "_id": 1}}, show]
    found = [{"_id": 1, "s": 1.0}, {"_id": 2, "s": 0.75}, {"_id": 3, "s": 0.75}, {"_id": 7, "s": 0.75}]
    joined = at.must("t", {"aggregate": "d", "pipeline": [join(*searches)], "cursor": {}})["cursor"]["firstBatch"]
    assert [item["found"] for item in joined] == [found, found]
    by = {"$match": {**text("coffee -cream"), "$expr": {"$eq": ["$by", "$$by"]}}}
    bound = {"aggregate": "d", "pipeline": [join(by, show, let={"by": "$by"})], "cursor": {}}
    assert [item["found"] for item in at.must("t", bound)["cursor"]["firstBatch"]] == [
        [{"_id": 1, "s": 1.0}], [{"_id": 2, "s": 0.75}],
    ]  # fmt: skip
    stages = [join({"$match": text("cake")}, show), {"$project": {"o": SCORE, "found": 1}}]
    both = aggregate(at, {"$match": text("leche")}, {"$sort": {"_id": 1}}, *stages)
    assert both == [{"_id": key, "found": [{"_id": 3, "s": 0.75}], "o": pytest.approx(2 / 3)} for key in (5, 8)]
    union = {"$unionWith": {"coll": "c", "pipeline": [{"$match": text("cake")}, show]}}
    assert aggregate(at, {"$match": {"_id": 1}}, union) == [ARTICLES[0], {"_id": 3, "s": 0.75}]
    plain = {"$unionWith": {"coll": "c", "pipeline": [{"$match": {**text("coffee"), "views": {"$gt": 20}}}]}}
    assert aggregate(at, {"$match": {"_id": 4}}, plain) == [ARTICLES[3], ARTICLES[0]]


def test_a_view_may_search(at: DrivenServer) -> None:
    at.must("t", {"create": "v", "viewOn": "c", "pipeline": [{"$match": text("coffee")}, {"$set": {"s": SCORE}}]})
    at.must("t", {"create": "j", "viewOn": "c", "pipeline": [{"$match": {"_id": 4}}, join({"$match": text("cake")})]})
    expected = [{"_id": 1, "s": 1.0}, {"_id": 2, "s": 0.75}, {"_id": 7, "s": 0.75}]
    stages = [{"$project": {"s": 1}}, {"$sort": {"_id": 1}}]
    read = {"aggregate": "v", "pipeline": stages, "cursor": {}}
    assert at.must("t", read)["cursor"]["firstBatch"] == expected
    assert aggregate(at, {"$match": {"_id": 4}}, join(*stages, source="v"))[0]["found"] == expected
    assert at.must("t", {"find": "j"})["cursor"]["firstBatch"] == [{**ARTICLES[3], "found": [ARTICLES[2]]}]


def test_find_and_modify_shows_the_score(at: DrivenServer) -> None:
    """The score is that of the document as it matched, also where the new one is shown."""
    shown = {"_id": 1, "s": SCORE}
    update = {"findAndModify": "c", "query": text("cake"), "update": {"$set": {"subject": "tea"}}, "fields": shown}
    assert at.must("t", {**update, "new": True})["value"] == {"_id": 3, "s": 0.75}
    first = {"findAndModify": "c", "query": text("coffee"), "sort": {"s": SCORE}, "remove": True}
    key = {"k": {"$meta": "sortKey"}}
    assert at.must("t", {**first, "fields": {**shown, **key}})["value"] == {"_id": 1, "s": 1.0, "k": [1.0]}
    upsert = {"findAndModify": "c", "query": {"_id": 99}, "update": {"a": 1}, "upsert": True, "fields": {"a": 1}}
    assert at.must("t", {**upsert, "new": True})["value"] == {"_id": 99, "a": 1}


def test_alternatives_of_a_search_have_indexes(at: DrivenServer) -> None:
    spec = {"$or": [text("cake"), {"views": 10}]}
    assert refused(at, {"find": "c", "filter": spec}) == 291
    by_id = find(at, {"$or": [text("cake"), {"_id": {"$gt": 7}}]}, projection={"_id": 1, "s": SCORE}, sort={"_id": 1})
    assert by_id == [{"_id": 3, "s": 0.75}, {"_id": 8}]
    at.must("t", {"createIndexes": "c", "indexes": [{"key": {"views": 1}, "name": "v"}]})
    assert sorted(ids(at, spec)) == [3, 7, 8]
    assert ids(at, spec, sort={"views": -1, "_id": 1}) == [3, 7, 8]
    scored = find(at, spec, projection={"_id": 1, "s": SCORE}, sort={"_id": 1})
    assert scored == [{"_id": 3, "s": 0.75}, {"_id": 7}, {"_id": 8}]
    assert sorted(ids(at, {"$or": [*spec["$or"], {"_id": 1}]})) == [1, 3, 7, 8]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"find": "d", "filter": text("x")}, 27), ({"find": "e", "filter": text("x")}, 27),
        ({"find": "c", "filter": {"$text": "x"}}, 2), ({"find": "c", "filter": {"$text": {}}}, 4),
        ({"find": "c", "filter": {"$text": {"$search": 5}}}, 14), ({"find": "c", "filter": text("x", language=5)}, 14),
        ({"find": "c", "filter": text("x", caseSensitive=1)}, 14), ({"find": "c", "filter": text("x", other=1)}, 2),
        ({"find": "c", "filter": text("x", language="klingon")}, 2),
        ({"find": "c", "filter": {"$and": [text("x"), text("y")]}}, 2),
        ({"find": "c", "filter": {"$nor": [text("x")]}}, 2),
        ({"find": "c", "filter": {"a": {"$elemMatch": text("x")}}}, 2),
        ({"find": "c", "filter": text("x"), "hint": "_id_"}, 2),
        ({"find": "c", "filter": text("x"), "sort": {"$natural": 1}}, 2),
        ({"find": "c", "filter": {}, "projection": {"s": SCORE}}, 40218),
        ({"find": "c", "filter": {}, "sort": {"s": SCORE}}, 40218),
        ({"find": "c", "filter": text("x"), "sort": {"s": {"$meta": "other"}}}, 31138),
        ({"create": "v", "validator": text("x")}, 2),
        ({"findAndModify": "c", "query": {}, "remove": True, "fields": {"s": SCORE}}, 40218),
        ({"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a", "partialFilterExpression": text("x")}]}, 2),
    ],
)  # fmt: skip
def test_what_a_search_cannot_be_is_refused(at: DrivenServer, command: Json, code: int) -> None:
    at.must("t", {"insert": "e", "documents": [{"_id": 1}]})
    assert refused(at, command) == code


@pytest.mark.parametrize(
    ("stages", "code"),
    [
        ([{"$limit": 1}, {"$match": text("x")}], 17313), ([{"$match": text("x")}, {"$match": text("x")}], 17313),
        ([{"$match": text("x")}, {"$group": {"_id": 1}}, {"$set": {"s": SCORE}}], 40218),
        ([{"$match": {}}, {"$sort": {"s": SCORE}}], 40218), ([{"$set": {"s": SCORE}}], 40218),
        ([{"$facet": {"x": [{"$match": text("x")}]}}], 40600),
        ([{"$facet": {"x": [{"$limit": 1}, {"$match": text("x")}]}}], 17313),
        ([join({"$limit": 1}, {"$match": text("x")})], 17313), ([join({"$match": text("x")}, source="e")], 27),
        ([join({"$match": text("x")}, source="v")], 17313),
        ([{"$match": text("x")}, join({"$set": {"s": SCORE}})], 40218),
        ([join({"$match": text("x")}), {"$set": {"s": SCORE}}], 40218),
        ([join({"$match": text("x")}, localField="_id", foreignField="_id")], 17313),
        ([{"$match": text("x")}, {"$group": {"_id": 1}}, {"$match": {}}, {"$set": {"s": SCORE}}], 40218),
        ([{"$sort": {"s": {"$meta": "geoNearDistance"}}}], 40218),
        ([{"$project": {"s": {"$meta": "score"}}}], 40218),
        ([{"$project": {"s": {"$meta": "vectorSearchScore"}}}], 40218), ([{"$set": {"s": {"$meta": "other"}}}], 17308),
        ([{"$match": {**text("x"), "$expr": {"$gt": [SCORE, 1]}}}], 40218),
    ],
)  # fmt: skip
def test_a_search_begins_a_pipeline(at: DrivenServer, stages: list[Json], code: int) -> None:
    at.must("t", {"insert": "e", "documents": [{"_id": 1}]})
    at.must("t", {"create": "v", "viewOn": "c", "pipeline": [{"$match": {}}]})
    assert refused(at, {"aggregate": "c", "pipeline": stages, "cursor": {}}) == code


def test_a_long_search_is_bounded(at: DrivenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEARCH_TERM_COUNT_MAX", 200)
    assert refused(at, {"find": "c", "filter": text("x " * 131_073)}) == 2
    many = " ".join(f"n{number}" for number in range(limits.SEARCH_TERM_COUNT_MAX))
    assert refused(at, {"find": "c", "filter": text(many + " one")}) == 2
    assert at.must("t", {"count": "c", "query": text(many)})["n"] == 0
    assert ids(at, text(many.replace("n77 ", "cake "))) == [3]


def test_explain_shows_the_search(at: DrivenServer) -> None:
    spec = {**text('coffee "cake" -tea'), "views": {"$gt": 9}}
    plan = at.must("t", {"explain": {"find": "c", "filter": spec}, "verbosity": "executionStats"})
    outer = plan["queryPlanner"]["winningPlan"]
    assert outer["stage"] == "FETCH" and outer["filter"] == {"views": {"$gt": 9}}
    stage = outer["inputStage"]
    assert (stage["stage"], stage["indexName"], stage["indexPrefix"], stage["textIndexVersion"]) == (
        "TEXT_MATCH",
        "i",
        {},
        3,
    )
    assert stage["parsedTextQuery"] == {
        "terms": ["cake", "coffe"], "negatedTerms": ["tea"], "phrases": ["cake"], "negatedPhrases": [],
    }  # fmt: skip
    assert [stage["inputStage"]["stage"], stage["inputStage"]["inputStage"]["stage"]] == ["FETCH", "OR"]
    scan = stage["inputStage"]["inputStage"]["inputStages"][0]
    assert scan["keyPattern"] == {"_fts": "text", "_ftsx": 1} and scan["direction"] == "backward"
    assert plan["executionStats"]["totalKeysExamined"] == 4 and plan["executionStats"]["nReturned"] == 1
    scored = {"find": "c", "filter": text("coffee"), "sort": {"s": SCORE}}
    plan = at.must("t", {"explain": scored, "verbosity": "executionStats"})
    assert plan["queryPlanner"]["winningPlan"]["inputStage"]["stage"] == "TEXT_OR"
    stages = plan["executionStats"]["executionStages"]["inputStage"]
    assert (stages["nReturned"], stages["docsExamined"], stages["inputStage"]["keysExamined"]) == (3, 3, 3)
    phrase = {"find": "c", "filter": text('"coffee"'), "sort": {"s": SCORE}}
    plan = at.must("t", {"explain": phrase, "verbosity": "executionStats"})
    assert plan["queryPlanner"]["winningPlan"]["stage"] == "SORT"
    assert plan["queryPlanner"]["winningPlan"]["inputStage"]["inputStage"]["stage"] == "TEXT_OR"
    pipeline = [{"$match": text("coffee")}, {"$set": {"s": SCORE}}]
    plan = at.must(
        "t", {"explain": {"aggregate": "c", "pipeline": pipeline, "cursor": {}}, "verbosity": "executionStats"}
    )
    assert [next(iter(stage)) for stage in plan["stages"]] == ["$cursor", "$addFields"] or len(plan["stages"]) == 2


def test_scores_are_those_of_the_documents_that_are_returned(at: DrivenServer) -> None:
    """Documents change between two batches: the scores that their keys had are not those of their texts any more."""
    count = 4 * limits.VIEW_CHUNK_COUNT
    many = [{"_id": 100 + n, "subject": f"lamp{' oil' * (n % 3)}"} for n in range(count)]
    at.must("t", {"insert": "c", "documents": many})
    shown = {"subject": 1, "s": SCORE}
    read = {"find": "c", "filter": text("lamp oil"), "projection": shown, "sort": {"s": SCORE}, "batchSize": 2}
    cursor = at.must("t", read)["cursor"]
    change = {
        "q": {"subject": {"$ne": "lamp"}, "_id": {"$lt": 100 + count}},
        "u": {"$set": {"subject": "oil"}},
        "multi": True,
    }
    at.must("t", {"update": "c", "updates": [change]})
    at.must("t", {"delete": "c", "deletes": [{"q": {"_id": 100}, "limit": 0}]})
    at.must("t", {"update": "c", "updates": [{"q": {"_id": 103}, "u": {"$set": {"subject": "tea"}}}]})
    get_more = {"getMore": cursor["id"], "collection": "c", "batchSize": 2 * count}
    batch = cursor["firstBatch"] + at.must("t", get_more)["cursor"]["nextBatch"]
    scores = {"lamp": 1.1, "lamp oil": 1.5, "lamp oil oil": 1.5 * (1 / 3 + 0.5) + (0.5 / 3 + 0.5), "oil": 1.1}
    assert all(item["s"] == pytest.approx(scores[item["subject"]]) for item in batch)
    assert {item["subject"] for item in batch} == scores.keys() - {"lamp oil"}
    assert {item["_id"] for item in batch} == set(range(101, 100 + count)) - {103}


def test_a_transaction_finds_what_it_has_written(at: DrivenServer) -> None:
    fields = {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(1), "autocommit": False}
    insert = {"insert": "c", "documents": [{"_id": 100, "subject": "cake"}], "startTransaction": True}
    at.must("t", {**insert, **fields})
    read = {"find": "c", "filter": text("cake"), "projection": {"_id": 1, "s": SCORE}, "sort": {"s": SCORE}}
    assert at.must("t", {**read, **fields})["cursor"]["firstBatch"] == [{"_id": 100, "s": 1.1}, {"_id": 3, "s": 0.75}]
    assert ids(at, text("cake")) == [3]


def test_a_search_and_its_batches(at: DrivenServer) -> None:
    at.must("t", {"insert": "c", "documents": [{"_id": 100 + n, "subject": f"lamp {n}"} for n in range(300)]})
    first = at.must("t", {"find": "c", "filter": text("lamp 7 8"), "projection": {"s": SCORE}, "batchSize": 50})[
        "cursor"
    ]
    found, cursor = first["firstBatch"], first["id"]
    while cursor:
        batch = at.must("t", {"getMore": cursor, "collection": "c", "batchSize": 50})["cursor"]
        found, cursor = found + batch["nextBatch"], batch["id"]
    assert len({item["_id"] for item in found}) == len(found) == 300
