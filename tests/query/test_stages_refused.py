"""Errors of invalid pipelines, with MongoDB's codes."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import CommandError
from headrace.query.pipeline import PipelineContext, parse_pipeline, run_pipeline
from tests.conformance.known import KNOWN
from tests.query.recorded_aggregations import recorded, values

CONTEXT = PipelineContext(database="hr", collection="c", read_collection=lambda database, collection, depth: [])
_GROUP = {"$group": {"_id": None}}
REFUSED: list[tuple[Any, int]] = [
    (5, 14),
    ({}, 40323),
    ({"$match": {}, "$limit": 1}, 40323),
    ({"$nope": 1}, 40324),
    ({"$match": 5}, 15959),
    ({"$project": 5}, 15969),
    ({"$project": {}}, 51272),
    ({"$addFields": []}, 40272),
    ({"$set": {"a": {}}}, 40180),
    ({"$project": {"a": {"$add": [1, 2], "$subtract": [3, 1]}}}, 16410),
    ({"$project": {"a": {"$add": [1, 2], "x": 1}}}, 16410),
    ({"$project": {"a": {"$elemMatch": {"x": 1}}}}, 168),
    ({"$project": {"a": {"$nope": {"x": 1}}}}, 31325),
    ({"$set": {"a": 1, "a.b": 2}}, 40176),
    ({"$set": {"a": {"b.c": 1}}}, 40183),
    ({"$set": {"a.": 1}}, 40353),
    ({"$set": {"$a": 1}}, 16410),
    ({"$unset": 5}, 31002),
    ({"$unset": []}, 31119),
    ({"$unset": [1]}, 31120),
    ({"$replaceRoot": 1}, 40229),
    ({"$replaceRoot": {}}, 40414),
    ({"$replaceRoot": {"x": 1}}, 40415),
    ({"$sort": 1}, 15973),
    ({"$sort": {}}, 15976),
    ({"$sort": {"a": "x"}}, 15974),
    ({"$sort": {"a": 2}}, 15975),
    ({"$sort": {"a": {"$meta": "randVal", "x": 1}}}, 9),
    ({"$sort": {"a": {"x": 1}}}, 17312),
    ({"$limit": 0}, 15958),
    ({"$limit": -1}, 15958),
    ({"$limit": 1.5}, 5107201),
    ({"$limit": "x"}, 5107201),
    ({"$limit": float("nan")}, 5107201),
    ({"$skip": -1}, 5107200),
    ({"$skip": None}, 5107200),
    ({"$count": 1}, 40156),
    ({"$count": ""}, 40157),
    ({"$count": "$a"}, 40158),
    ({"$count": "a.b"}, 40160),
    ({"$sortByCount": 1}, 40149),
    ({"$sortByCount": "a"}, 40148),
    ({"$sortByCount": {"a": 1}}, 40147),
    ({"$unwind": 1}, 15981),
    ({"$unwind": "a"}, 28818),
    ({"$unwind": "$a\0b"}, 16419),
    ({"$unwind": {"path": "$\0"}}, 16419),
    ({"$unwind": {}}, 28812),
    ({"$unwind": {"path": 1}}, 28808),
    ({"$unwind": {"path": "$a", "preserveNullAndEmptyArrays": 1}}, 28809),
    ({"$unwind": {"path": "$a", "includeArrayIndex": ""}}, 28810),
    ({"$unwind": {"path": "$a", "includeArrayIndex": "$i"}}, 28822),
    ({"$unwind": {"path": "$a", "x": 1}}, 28811),
    ({"$group": 1}, 15947),
    ({"$group": {}}, 15955),
    ({"$group": {"_id": 1, "a": 1}}, 40234),
    ({"$group": {"_id": 1, "a.b": {"$sum": 1}}}, 40235),
    ({"$group": {"_id": 1, "$a": {"$sum": 1}}}, 40236),
    ({"$group": {"_id": 1, "a": {"$sum": 1, "$avg": 1}}}, 40238),
    ({"$group": {"_id": 1, "a": {"$nope": 1}}}, 15952),
    ({"$bucket": 1}, 40201),
    ({"$bucket": {"groupBy": "$a"}}, 40198),
    ({"$bucket": {"groupBy": "a", "boundaries": [1, 2]}}, 40202),
    ({"$bucket": {"groupBy": "$a", "boundaries": 1}}, 40200),
    ({"$bucket": {"groupBy": "$a", "boundaries": [1]}}, 40192),
    ({"$bucket": {"groupBy": "$a", "boundaries": ["$a", 2]}}, 40191),
    ({"$bucket": {"groupBy": "$a", "boundaries": ["$$NOW", 2]}}, 40191),
    ({"$bucket": {"groupBy": "$a", "boundaries": [1, "a"]}}, 40193),
    ({"$bucket": {"groupBy": "$a", "boundaries": [2, 1]}}, 40194),
    ({"$bucket": {"groupBy": "$a", "boundaries": [1, 2], "default": 1}}, 40199),
    ({"$bucket": {"groupBy": "$a", "boundaries": [1, 2], "default": "$a"}}, 40195),
    ({"$bucket": {"groupBy": "$a", "boundaries": [1, 2], "output": 1}}, 40196),
    ({"$bucket": {"groupBy": "$a", "boundaries": [1, 2], "x": 1}}, 40197),
    ({"$bucketAuto": 1}, 40240),
    ({"$bucketAuto": {"groupBy": "$a"}}, 40246),
    ({"$bucketAuto": {"groupBy": "a", "buckets": 1}}, 40239),
    ({"$bucketAuto": {"groupBy": "$a", "buckets": "1"}}, 40241),
    ({"$bucketAuto": {"groupBy": "$a", "buckets": 1.5}}, 40242),
    ({"$bucketAuto": {"groupBy": "$a", "buckets": 0}}, 40243),
    ({"$bucketAuto": {"groupBy": "$a", "buckets": 1, "granularity": "x"}}, 40257),
    ({"$facet": {}}, 40169),
    ({"$facet": {"a": 1}}, 40170),
    ({"$facet": {"a.b": []}}, 16412),
    ({"$facet": {"a": [{"$out": "x"}]}}, 40600),
    ({"$facet": {"a": [{"$facet": {"a": []}}]}}, 40600),
    ({"$facet": {"a": [{"$changeStream": {}}]}}, 40600),
    ({"$lookup": 1}, 9),
    ({"$lookup": {"from": "c", "as": "x"}}, 9),
    ({"$lookup": {"from": "c", "as": "x", "localField": "a"}}, 9),
    ({"$lookup": {"from": "c", "localField": "a", "foreignField": "b"}}, 40414),
    ({"$lookup": {"from": "c", "localField": "a", "foreignField": "b", "as": None}}, 40414),
    ({"$lookup": {"from": "c", "localField": 1, "foreignField": "b", "as": "x"}}, 14),
    ({"$lookup": {"from": "c", "as": 1, "pipeline": []}}, 14),
    ({"$lookup": {"from": "c", "as": "x", "pipeline": 1}}, 14),
    ({"$lookup": {"from": "c", "as": "x", "pipeline": [], "let": []}}, 14),
    ({"$lookup": {"from": "c", "as": "x", "pipeline": [], "localfield": "a"}}, 40415),
    ({"$lookup": {"from": {"db": "d", "coll": "c", "x": 1}, "as": "x", "pipeline": []}}, 40415),
    ({"$lookup": {"from": {"db": "other", "coll": "c"}, "as": "x", "pipeline": []}}, 9),
    ({"$lookup": {"from": None, "as": "x", "pipeline": []}}, 9),
    ({"$lookup": {"from": "c", "as": "x", "pipeline": [{"$out": "d"}]}}, 51047),
    ({"$lookup": {"from": "c", "as": "x", "pipeline": [{"$changeStream": {}}]}}, 51047),
    ({"$graphLookup": {"from": "c"}}, 40105),
    ({"$graphLookup": {"from": "c", "x": 1}}, 40104),
    ({"$graphLookup": {"from": "c", "as": 1}}, 40103),
    ({"$graphLookup": {"from": 1}}, 9),
    ({"$graphLookup": {"from": "c", "maxDepth": "x"}}, 40100),
    ({"$graphLookup": {"from": "c", "maxDepth": -1}}, 40101),
    ({"$graphLookup": {"from": "c", "maxDepth": 1.5}}, 40102),
    ({"$unionWith": 1}, 9),
    ({"$unionWith": {"coll": "c", "pipeline": [{"$out": "d"}]}}, 31441),
    ({"$sample": 1}, 28745),
    ({"$sample": {"size": "x"}}, 28746),
    ({"$sample": {"size": -1}}, 28747),
    ({"$sample": {"x": 1}}, 28748),
    ({"$sample": {}}, 28749),
    ({"$documents": []}, 73),
    ({"$currentOp": {}}, 73),
    ({"$listSessions": {}}, 73),
    ({"$changeStreamSplitLargeEvent": {}}, 20),
    ({"$changeStreamSplitLargeEvent": {"a": 1}}, 7182800),
    ({"$merge": 1}, 14),
    ({"$merge": {"into": "x", "whenMatched": "x"}}, 2),
    ({"$merge": {"into": "x", "whenMatched": [{"$match": {}}]}}, 72),
    ({"$fill": {"output": {"a": {"method": "linear"}}}}, 605001),
    ({"$fill": {"output": {"a": {"method": "x"}}}}, 6050202),
    ({"$setWindowFields": {"output": {"a": {"$rank": {}}}}}, 5371602),
    ({"$setWindowFields": {"output": {"a": {"$nope": {}}}}}, 9),
]


@pytest.mark.parametrize(("stage", "code"), REFUSED, ids=lambda value: str(value)[:60])
def test_a_bad_stage_is_refused_with_mongodbs_code(stage: Any, code: int) -> None:
    with pytest.raises(CommandError) as raised:
        parse_pipeline([stage], context=CONTEXT)
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("pipeline", "code"),
    [
        ([{"$limit": 1}, {"$collStats": {}}], 40602),
        ([{"$match": {"$text": {"$search": "x"}}}], 2),
        ([{"$limit": 1}, {"$match": {"$text": {"$search": "x"}}}], 17313),
        ([{"$limit": 1}, {"$changeStream": {}}], 40602),
        ([{"$out": "x"}, {"$limit": 1}], 40601),
        ([{"$merge": "x"}, {"$limit": 1}], 40601),
    ],
)
def test_a_misplaced_stage_is_refused(pipeline: list[Any], code: int) -> None:
    with pytest.raises(CommandError) as raised:
        parse_pipeline(pipeline, context=CONTEXT)
    assert raised.value.code == code


def test_an_unknown_stage_is_reported_before_a_misplaced_one() -> None:
    with pytest.raises(CommandError) as raised:
        parse_pipeline([{"$out": "x"}, {"$nope": 1}], context=CONTEXT)
    assert raised.value.code == 40324


@pytest.mark.parametrize(
    ("stage", "document", "code"),
    [
        ({"$replaceRoot": {"newRoot": "$a"}}, {"a": 1}, 40228),
        ({"$replaceWith": "$a"}, {}, 40228),
        ({"$redact": "$a"}, {"a": 1}, 17053),
        ({"$bucket": {"groupBy": "$a", "boundaries": [1, 2]}}, {"a": 5}, 40066),
        ({"$bucketAuto": {"groupBy": "$a", "buckets": 1, "granularity": "R5"}}, {"a": "x"}, 40258),
        ({"$bucketAuto": {"groupBy": "$a", "buckets": 1, "granularity": "R5"}}, {"a": -1}, 40260),
    ],
)
def test_a_document_may_be_refused_when_it_comes(stage: Any, document: dict[str, Any], code: int) -> None:
    stages = parse_pipeline([stage], context=CONTEXT)
    with pytest.raises(CommandError) as raised:
        list(run_pipeline(stages, [document]))
    assert raised.value.code == code


def streams() -> dict[str, tuple[list[Any], int]]:
    """The pipelines of the recorded change streams, with the code each was answered, 0 for none."""
    result = {}
    for case in recorded("stages"):
        for step, answer in zip(case["steps"], case["expect"]):
            if "watch" in step:
                code = answer["error"]["code"]["$numberInt"] if "error" in answer else 0
                result[case["id"]] = (values({"pipeline": step.get("pipeline", [])})["pipeline"], int(code))
    return result


STREAMS = streams()


@pytest.mark.parametrize("name", sorted(STREAMS) or [pytest.param("", marks=pytest.mark.skip("no recordings here"))])
def test_a_change_stream_allows_what_the_recorded_one_allowed(name: str) -> None:
    if name in KNOWN:
        pytest.skip(KNOWN[name])
    pipeline, expected = STREAMS[name]
    code = 0
    try:
        parse_pipeline(pipeline, context=PipelineContext(database="hr", collection="c", in_change_stream=True))
    except CommandError as error:
        code = error.code
    assert code == expected


@pytest.mark.parametrize(
    ("pipeline", "code"),
    [
        ([{"$fill": {"output": {"a": {"value": 1}}}}], 0),
        ([{"$fill": {"sortBy": {"a": 1}, "output": {"a": {"method": "locf"}}}}], 20),
        ([{"$setWindowFields": {"output": {"a": {"$sum": 1}}}}], 20),
        ([{"$changeStreamSplitLargeEvent": {}}], 0),
        ([{"$match": {}}, {"$changeStreamSplitLargeEvent": {}}], 0),
        ([{"$changeStreamSplitLargeEvent": {}}, {"$match": {}}], 7182802),
        ([{"$changeStreamSplitLargeEvent": {}}, {"$changeStreamSplitLargeEvent": {}}], 7183900),
        ([{"$changeStream": {}}], 40602),
        ([{"$search": {}}], 20),
    ],
    ids=str,
)
def test_the_stages_of_later_releases_are_placed_in_a_change_stream(pipeline: list[Any], code: int) -> None:
    result = 0
    try:
        parse_pipeline(pipeline, context=PipelineContext(database="hr", collection="c", in_change_stream=True))
    except CommandError as error:
        result = error.code
    assert result == code


@pytest.mark.parametrize("stage", [{"$collStats": {}}, {"$indexStats": {}}])
def test_a_server_stage_never_reads_a_collections_documents(stage: Any) -> None:
    stages = parse_pipeline([stage], context=CONTEXT)
    with pytest.raises(CommandError) as raised:
        list(run_pipeline(stages, [{"_id": 1}]))
    assert raised.value.code == 238
