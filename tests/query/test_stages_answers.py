"""Results of the stages: small pipelines with their answers."""

from __future__ import annotations

import random
from typing import Any

import pytest
from bson import Int64
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.query.pipeline import PipelineContext, parse_pipeline, run_pipeline
from headrace.query.stages.writes import WritingStage

OTHERS = {
    "people": [
        {"_id": 1, "name": "ann", "boss": 2, "tags": ["a", "b"]},
        {"_id": 2, "name": "bob", "boss": 3, "tags": []},
        {"_id": 3, "name": "cid", "boss": None},
        {"_id": 4, "name": "dee", "boss": 2, "tags": "a"},
    ]
}


def answer(pipeline: list[Any], documents: list[Any] | None = None, **context: Any) -> list[Any]:
    """The pipeline's answer over `documents`, or over the people."""
    known = PipelineContext(database="hr", read_collection=lambda _, name, depth: OTHERS.get(name, []), **context)
    stages = parse_pipeline(pipeline, context=known)
    return list(run_pipeline(stages, OTHERS["people"] if documents is None else documents))


def test_a_set_goes_into_documents_of_arrays_and_replaces_scalars_on_its_way() -> None:
    documents = [{"a": [{"b": 1}, 2, [{"c": 1}]]}, {"a": 5}, {}]
    expected = [[{"b": 9}, {"b": 9}, [{"c": 1, "b": 9}]], {"b": 9}, {"b": 9}]
    assert [d["a"] for d in answer([{"$set": {"a.b": 9}}], documents)] == expected


def test_a_set_of_an_object_adds_to_the_object_that_is_there() -> None:
    assert answer([{"$set": {"a": {"b": 1, "c": {"d": 2}}}}], [{"a": {"x": 0, "c": 5}}]) == [
        {"a": {"x": 0, "c": {"d": 2}, "b": 1}}
    ]


def test_every_expression_of_a_set_sees_the_document_as_it_came() -> None:
    assert answer([{"$set": {"a": "$b", "b": "$a", "c": "$$REMOVE"}}], [{"a": 1, "b": 2, "c": 3}]) == [{"a": 2, "b": 1}]


def test_removing_below_what_is_not_there_leaves_an_empty_object() -> None:
    assert answer([{"$set": {"a.b": "$$REMOVE"}}], [{"a": 1}, {}]) == [{"a": {}}, {"a": {}}]


def test_no_stage_changes_the_documents_that_come_in() -> None:
    document = {"_id": 1, "a": {"b": [1, {"c": 2}]}, "n": 1}
    answer([{"$set": {"a.b.c": 5}}, {"$unwind": "$a.b"}, {"$unset": "a.b"}], [document])
    assert document == {"_id": 1, "a": {"b": [1, {"c": 2}]}, "n": 1}


def test_an_unwind_preserves_the_order_of_fields_and_gives_long_indexes() -> None:
    stage = {"$unwind": {"path": "$a", "includeArrayIndex": "i", "preserveNullAndEmptyArrays": True}}
    result = answer([stage], [{"a": [7, 8], "z": 1}, {"a": []}, {"a": None}, {}, {"a": 5}])
    assert result == [
        {"a": 7, "z": 1, "i": 0},
        {"a": 8, "z": 1, "i": 1},
        {"i": None},
        {"a": None, "i": None},
        {"i": None},
        {"a": 5, "i": None},
    ]
    assert type(result[0]["i"]) is Int64
    assert list(result[0]) == ["a", "z", "i"]


def test_an_unwind_drops_what_has_no_elements() -> None:
    assert answer([{"$unwind": "$a.b"}], [{"a": {"b": []}}, {"a": [{"b": [1]}]}, {"a": {"b": [1]}}]) == [
        {"a": {"b": 1}}
    ]


def test_a_group_by_one_field_of_an_object_has_null_for_what_is_missing() -> None:
    assert answer([{"$group": {"_id": {"x": "$k"}}}], [{}, {"k": 1}, {"k": None}]) == [
        {"_id": {"x": None}},
        {"_id": {"x": 1}},
    ]
    assert answer([{"$group": {"_id": {"x": "$k", "y": "$l"}}}], [{}, {"k": 1}]) == [{"_id": {}}, {"_id": {"x": 1}}]


def test_numbers_of_different_types_are_one_group_with_the_first_as_its_key() -> None:
    result = answer([{"$group": {"_id": "$n", "c": {"$sum": 1}}}], [{"n": 1.0}, {"n": 1}, {"n": Int64(1)}, {"n": "1"}])
    assert result == [{"_id": 1.0, "c": 3}, {"_id": "1", "c": 1}]
    assert type(result[0]["_id"]) is float


def test_counting_nothing_gives_nothing() -> None:
    assert answer([{"$count": "n"}], []) == []
    assert answer([{"$count": "n"}]) == [{"n": 4}]


def test_buckets_hold_their_lower_boundary_and_not_their_upper() -> None:
    stage = {"$bucket": {"groupBy": "$n", "boundaries": [0, 5, 10], "default": "rest"}}
    documents = [{"n": n} for n in (0, 4.9, 5, 10, -1, "x", None)] + [{}]
    assert answer([stage], documents) == [
        {"_id": 0, "count": 2},
        {"_id": 5, "count": 1},
        {"_id": "rest", "count": 5},
    ]


def test_automatic_buckets_never_part_equal_values() -> None:
    stage = {"$bucketAuto": {"groupBy": "$n", "buckets": 2, "output": {"ns": {"$push": "$n"}}}}
    assert answer([stage], [{"n": n} for n in (3, 1, 2, 2, 2, 2)]) == [
        {"_id": {"min": 1, "max": 3}, "ns": [1, 2, 2, 2, 2]},
        {"_id": {"min": 3, "max": 3}, "ns": [3]},
    ]


def test_automatic_buckets_round_to_powers_of_two() -> None:
    stage = {"$bucketAuto": {"groupBy": "$n", "buckets": 2, "granularity": "POWERSOF2"}}
    assert [d["_id"] for d in answer([stage], [{"n": n} for n in (3, 5, 9, 17)])] == [
        {"min": 2.0, "max": 8.0},
        {"min": 8.0, "max": 32.0},
    ]


def test_a_lookup_joins_arrays_by_element_and_nothing_as_null() -> None:
    stage = {"$lookup": {"from": "people", "localField": "t", "foreignField": "tags", "as": "found"}}
    documents = [{"t": "a"}, {"t": ["b", "zz"]}, {"t": []}, {}, {"t": None}, {"t": [["a", "b"]]}]
    result = [[person["_id"] for person in d["found"]] for d in answer([stage], documents)]
    assert result == [[1, 4], [1], [3], [3], [3], [1]]


def test_a_lookup_runs_its_pipeline_with_the_variables_of_each_document() -> None:
    inner = [{"$match": {"$expr": {"$eq": ["$boss", "$$me"]}}}, {"$project": {"_id": 0, "name": 1, "of": "$$me"}}]
    stage = {"$lookup": {"from": "people", "let": {"me": "$_id"}, "pipeline": inner, "as": "staff"}}
    result = {d["_id"]: d["staff"] for d in answer([stage])}
    assert result == {
        1: [],
        2: [{"name": "ann", "of": 2}, {"name": "dee", "of": 2}],
        3: [{"name": "bob", "of": 3}],
        4: [],
    }


def test_a_lookup_within_a_lookup_sees_the_variables_of_both() -> None:
    innermost = [{"$match": {"$expr": {"$in": ["$_id", ["$$me", "$$other"]]}}}, {"$project": {"name": 1}}]
    inner = [
        {"$match": {"$expr": {"$eq": ["$boss", "$$me"]}}},
        {"$lookup": {"from": "people", "let": {"other": "$_id"}, "pipeline": innermost, "as": "both"}},
    ]
    stage = {"$lookup": {"from": "people", "let": {"me": "$_id"}, "pipeline": inner, "as": "staff"}}
    result = answer([{"$match": {"_id": 2}}, stage])[0]["staff"]
    assert [[b["_id"] for b in person["both"]] for person in result] == [[1, 2], [2, 4]]


def test_a_lookup_with_fields_and_a_pipeline_runs_it_over_what_joins() -> None:
    stage = {
        "$lookup": {
            "from": "people", "localField": "_id", "foreignField": "boss", "pipeline": [{"$count": "n"}], "as": "x.y",
        }
    }  # fmt: skip
    assert [d["x"] for d in answer([stage])] == [{"y": []}, {"y": [{"n": 2}]}, {"y": [{"n": 1}]}, {"y": []}]


def test_a_graph_lookup_follows_to_the_depth_allowed() -> None:
    stage = {
        "$graphLookup": {
            "from": "people", "startWith": "$boss", "connectFromField": "boss", "connectToField": "_id",
            "as": "above", "depthField": "steps",
        }
    }  # fmt: skip
    chains = [[(p["_id"], p["steps"]) for p in d["above"]] for d in answer([stage])]
    assert chains == [[(2, 0), (3, 1)], [(3, 0)], [], [(2, 0), (3, 1)]]
    stage["$graphLookup"]["maxDepth"] = 0
    assert [[p["_id"] for p in d["above"]] for d in answer([stage])] == [[2], [3], [], [2]]
    stage["$graphLookup"]["restrictSearchWithMatch"] = {"name": "bob"}
    assert [[p["_id"] for p in d["above"]] for d in answer([stage])] == [[2], [], [], [2]]


def test_a_union_adds_the_other_collection_through_its_pipeline() -> None:
    stage = {"$unionWith": {"coll": "people", "pipeline": [{"$limit": 1}, {"$unset": ["boss", "tags"]}]}}
    assert answer([stage], [{"x": 1}]) == [{"x": 1}, {"_id": 1, "name": "ann"}]
    assert answer([{"$unionWith": "none"}], [{"x": 1}]) == [{"x": 1}]


def test_facets_see_the_same_documents() -> None:
    stage = {"$facet": {"a": [{"$skip": 3}], "b": [{"$count": "n"}], "c": []}}
    result = answer([stage])
    assert result == [{"a": OTHERS["people"][3:], "b": [{"n": 4}], "c": OTHERS["people"]}]


def test_documents_in_a_pipeline_need_no_collection() -> None:
    assert answer([{"$documents": [{"a": 1}, {"a": 2}]}, {"$match": {"a": 2}}], []) == [{"a": 2}]


def test_a_sample_is_a_choice_without_repetition() -> None:
    result = answer([{"$sample": {"size": 3}}], generator=random.Random(1))
    assert len({d["_id"] for d in result}) == 3
    assert len(answer([{"$sample": {"size": 30}}])) == 4


def test_redaction_looks_at_every_level() -> None:
    stage = {"$redact": {"$cond": [{"$eq": ["$secret", True]}, "$$PRUNE", "$$DESCEND"]}}
    document = {"a": {"secret": True}, "b": [{"secret": True}, {"c": 1}, 5, [{"secret": True}]], "d": {"e": {}}}
    assert answer([stage], [document]) == [{"b": [{"c": 1}, 5, []], "d": {"e": {}}}]
    assert answer([{"$redact": "$$KEEP"}], [document]) == [document]


def test_windows_slide_grow_and_rank() -> None:
    documents = [{"_id": i, "k": i % 2, "n": n} for i, n in enumerate([5, 1, 5, 3, 2])]
    stage = {
        "$setWindowFields": {
            "partitionBy": "$k",
            "sortBy": {"n": 1},
            "output": {
                "sum": {"$sum": "$n", "window": {"documents": ["unbounded", "current"]}},
                "near": {"$push": "$n", "window": {"documents": [-1, 1]}},
                "close": {"$push": "$_id", "window": {"range": [-2, 0]}},
                "rank": {"$rank": {}},
                "dense": {"$denseRank": {}},
                "place": {"$documentNumber": {}},
                "next": {"$shift": {"output": "$n", "by": 1, "default": -1}},
            },
        }
    }
    result = answer([stage], documents)
    names = ("_id", "sum", "near", "close", "rank", "dense", "place", "next")
    assert [tuple(d[name] for name in names) for d in result] == [
        (4, 2, [2, 5], [4], 1, 1, 1, 5),
        (0, 7, [2, 5, 5], [0, 2], 2, 2, 2, 5),
        (2, 12, [5, 5], [0, 2], 2, 2, 3, -1),
        (1, 1, [1, 3], [1], 1, 1, 1, 3),
        (3, 4, [1, 3], [1, 3], 2, 2, 2, -1),
    ]


def test_filling_carries_on_interpolates_and_puts_constants() -> None:
    documents = [{"t": t, "a": a, "b": a} for t, a in [(1, 1), (2, None), (4, 7), (5, None)]]
    output = {"a": {"method": "locf"}, "b": {"method": "linear"}, "c": {"value": 9}}
    result = answer([{"$fill": {"sortBy": {"t": 1}, "output": output}}], documents)
    assert [(d["a"], d["b"], d["c"]) for d in result] == [(1, 1, 9), (1, 3.0, 9), (7, 7, 9), (7, None, 9)]


@pytest.mark.parametrize("name", ["$set", "$addFields"])
def test_adding_no_fields_changes_nothing(name: str) -> None:
    assert answer([{name: {}}], [{"_id": 1, "a": 2}]) == [{"_id": 1, "a": 2}]


def test_densifying_makes_the_documents_between() -> None:
    stage = {"$densify": {"field": "n", "range": {"step": 2, "bounds": "full"}}}
    assert answer([stage], [{"n": 5, "x": 1}, {"n": 0}, {"y": 1}]) == [
        {"y": 1}, {"n": 0}, {"n": 2}, {"n": 4}, {"n": 5, "x": 1},
    ]  # fmt: skip
    stage = {"$densify": {"field": "n", "partitionByFields": ["k"], "range": {"step": 1, "bounds": [0, 2]}}}
    assert answer([stage], [{"n": 1, "k": 7}]) == [{"k": 7, "n": 0}, {"n": 1, "k": 7}]


def test_densifying_dates_steps_by_the_calendar() -> None:
    january, march = DatetimeMS(1706659200000), DatetimeMS(1711843200000)  # 2024-01-31, 2024-03-31
    stage = {"$densify": {"field": "d", "range": {"step": 1, "unit": "month", "bounds": "full"}}}
    result = [int(d["d"]) for d in answer([stage], [{"d": january}, {"d": march}])]
    assert result == [1706659200000, 1709164800000, 1711843200000]


@pytest.mark.parametrize(
    ("options", "existing", "expected"),
    [
        ({}, {"_id": 1, "a": 1, "b": 2}, {"_id": 1, "a": 9, "b": 2}),
        ({"whenMatched": "replace"}, {"_id": 1, "a": 1, "b": 2}, {"_id": 1, "a": 9}),
        ({"whenMatched": "keepExisting"}, {"_id": 1, "a": 1}, None),
        ({}, None, {"_id": 1, "a": 9}),
        ({"whenNotMatched": "discard"}, None, None),
        ({"whenMatched": [{"$set": {"a": ["$a", "$$new.a"]}}]}, {"_id": 1, "a": 1}, {"_id": 1, "a": [1, 9]}),
        ({"let": {"v": "$a"}, "whenMatched": [{"$set": {"b": "$$v"}}]}, {"_id": 1}, {"_id": 1, "b": 9}),
    ],
)
def test_a_merge_decides_what_is_stored(options: Any, existing: Any, expected: Any) -> None:
    (stage,) = parse_pipeline([{"$merge": {"into": "t", **options}}], context=PipelineContext(database="hr"))
    assert isinstance(stage, WritingStage)
    assert (stage.writes.kind, stage.writes.database, stage.writes.collection) == ("merge", "hr", "t")
    assert stage.writes.decide(existing, {"_id": 1, "a": 9}) == expected


@pytest.mark.parametrize(
    ("options", "existing", "code"),
    [({"whenMatched": "fail"}, {"_id": 1}, 11000), ({"whenNotMatched": "fail"}, None, 13113)],
)
def test_a_merge_may_fail(options: Any, existing: Any, code: int) -> None:
    (stage,) = parse_pipeline([{"$merge": {"into": "t", **options}}], context=PipelineContext(database="hr"))
    assert isinstance(stage, WritingStage)
    with pytest.raises(CommandError) as raised:
        stage.writes.decide(existing, {"_id": 1})
    assert raised.value.code == code
