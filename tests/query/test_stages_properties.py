"""Pipelines compared with plain Python over random documents."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.query.match import parse_filter
from headrace.query.pipeline import PipelineContext, parse_pipeline, run_pipeline
from headrace.values.order import sort_key
from tests.examples import examples

Documents = list[dict[str, Any]]
scalars = st.one_of(st.none(), st.integers(-3, 3), st.sampled_from([1.5, 2.0, "", "a", "b", True]))
values = st.one_of(scalars, st.lists(scalars, max_size=3))
fields = st.fixed_dictionaries({}, optional={"a": values, "b": scalars, "n": st.integers(-5, 5)})
documents = st.lists(fields, max_size=12).map(lambda inputs: [{"_id": i, **d} for i, d in enumerate(inputs)])
limits = st.one_of(st.integers(1, 6), st.just(2**63 - 1))
quick = examples(60)


def answer(pipeline: list[Any], inputs: Documents) -> Documents:
    context = PipelineContext(database="hr", collection="c", read_collection=lambda database, collection, depth: inputs)
    return list(run_pipeline(parse_pipeline(pipeline, context=context), inputs))


def number(document: dict[str, Any]) -> Any:
    return sort_key(document.get("n"))


@quick
@given(documents, st.integers(-5, 5), st.integers(0, 4), limits, st.sampled_from([1, -1]))
def test_match_sort_skip_limit_is_filter_sorted_slice(
    inputs: Documents, least: int, skip: int, limit: int, direction: int
) -> None:
    pipeline = [
        {"$match": {"n": {"$gte": least}}},
        {"$sort": {"n": direction, "_id": 1}},
        {"$skip": skip},
        {"$limit": limit},
    ]
    matching = [d for d in inputs if d.get("n", -9) >= least]
    expected = sorted(matching, key=lambda d: (direction * d["n"], d["_id"]))[skip : skip + limit]
    assert answer(pipeline, inputs) == expected


@quick
@given(documents, st.integers(1, 13), st.sampled_from(["a", "b", "n"]), st.sampled_from([1, -1]))
def test_a_sort_with_a_limit_yields_the_beginning_of_the_full_sort(
    inputs: Documents, limit: int, field: str, direction: int
) -> None:
    complete = answer([{"$sort": {field: direction}}], inputs)
    assert (
        answer([{"$sort": {field: direction}}, {"$set": {"x": 1}}, {"$limit": limit}, {"$unset": "x"}], inputs)
        == complete[:limit]
    )


@quick
@given(documents)
def test_groups_with_sums_are_counters(inputs: Documents) -> None:
    groups = answer([{"$group": {"_id": "$n", "c": {"$sum": 1}, "ids": {"$push": "$_id"}}}], inputs)
    assert {g["_id"]: g["c"] for g in groups} == Counter(d.get("n") for d in inputs)
    assert all([d["_id"] for d in inputs if d.get("n") == g["_id"]] == g["ids"] for g in groups)
    assert answer([{"$count": "total"}], inputs) == ([{"total": len(inputs)}] if inputs else [])


@quick
@given(documents)
def test_sort_by_count_is_most_common(inputs: Documents) -> None:
    counts = [g["count"] for g in answer([{"$sortByCount": "$n"}], inputs)]
    assert counts == sorted(Counter(d.get("n") for d in inputs).values(), reverse=True)


@quick
@given(documents)
def test_unwinding_and_grouping_again_gives_the_arrays_back(inputs: Documents) -> None:
    pipeline = [{"$unwind": "$a"}, {"$group": {"_id": "$_id", "a": {"$push": "$a"}}}]
    expected = [
        (d["_id"], d["a"] if isinstance(d["a"], list) else [d["a"]]) for d in inputs if d.get("a") not in (None, [])
    ]
    assert [(d["_id"], d["a"]) for d in answer(pipeline, inputs)] == expected


@quick
@given(documents, st.sampled_from(["a", "b", "n"]), st.sampled_from(["a", "b", "n"]))
def test_a_lookup_finds_what_filters_of_its_values_find(inputs: Documents, local: str, foreign: str) -> None:
    stage = {"$lookup": {"from": "c", "localField": local, "foreignField": foreign, "as": "j"}}
    for document in answer([stage], inputs):
        value = document.get(local)
        wanted = (value or [None]) if isinstance(value, list) else [value]
        matches = parse_filter({foreign: {"$in": wanted}})
        assert document["j"] == [other for other in inputs if matches(other)]


@quick
@given(documents, st.integers(1, 5))
def test_automatic_buckets_hold_every_document_once_in_order(inputs: Documents, count: int) -> None:
    stage = {"$bucketAuto": {"groupBy": "$n", "buckets": count, "output": {"ids": {"$push": "$_id"}}}}
    buckets = answer([stage], inputs)
    assert len(buckets) <= count
    assert [i for b in buckets for i in b["ids"]] == [d["_id"] for d in sorted(inputs, key=number)]


@quick
@given(documents)
def test_a_facet_is_its_pipelines_side_by_side(inputs: Documents) -> None:
    pipelines: dict[str, list[Any]] = {
        "x": [{"$match": {"n": {"$gt": 0}}}],
        "y": [{"$sort": {"b": 1}}],
        "z": [{"$limit": 2}],
    }
    assert answer([{"$facet": pipelines}], inputs) == [
        {name: answer(inner, inputs) for name, inner in pipelines.items()}
    ]


@quick
@given(documents)
def test_a_growing_window_sums_what_a_loop_sums(inputs: Documents) -> None:
    output = {"s": {"$sum": "$n", "window": {"documents": ["unbounded", "current"]}}}
    answered = answer([{"$setWindowFields": {"partitionBy": "$b", "sortBy": {"_id": 1}, "output": output}}], inputs)
    for document in answered:
        before = [
            d for d in inputs if sort_key(d.get("b")) == sort_key(document.get("b")) and d["_id"] <= document["_id"]
        ]
        assert document["s"] == sum(d.get("n", 0) for d in before)
