"""Which plan is chosen, what explain says of it, and that its counts are what the store saw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import limits
from headrace.errors import Interrupted
from headrace.execution.planner import choice, trial
from headrace.query.sort import parse_sort
from headrace.store.view import View
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.turns import Turn, Turns
from headrace.values.bson import decode, encode
from tests.execution.collections import batch, both, documents, filled, filters, flat, indexes, paths, sorts
from tests.stretches import tick_count

projections = st.lists(st.sampled_from(["a", "b", "c", "_id"]), min_size=1, max_size=3, unique=True).map(
    lambda names: {**dict.fromkeys(names, 1), **({} if "_id" in names else {"_id": 0})}
)


@settings(max_examples=100, deadline=None)
@given(
    flat | documents, indexes, st.lists(st.tuples(filters | st.just({}), projections, sorts), min_size=3, max_size=8)
)
def test_what_keys_cover_is_what_documents_have(
    made: list[dict[str, Any]], specs: list[Any], queries: list[tuple[dict[str, Any], dict[str, Any], Any]]
) -> None:
    with filled(made, specs) as at:
        for spec, projection, sort in queries:
            body = {"filter": spec, "projection": projection, **({"sort": sort} if sort else {})}
            expected, got = map(batch, both(at, "find", body))
            if type(expected) is int:
                assert expected == got
                continue
            shown = [sorted(encode(dict(sorted(item.items()))) for item in answer) for answer in (expected, got)]
            assert shown[0] == shown[1], (spec, projection, sort)


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(
    flat | documents, indexes, paths, st.lists(filters, min_size=2, max_size=3), sorts.filter(bool),
    st.lists(st.sampled_from([0, 1, 2, 3, "a", None]), min_size=2, max_size=4), st.integers(1, 4),
)  # fmt: skip
def test_branches_are_merged_in_their_order(
    made: list[dict[str, Any]], specs: list[Any], path: str, branches: list[dict[str, Any]], sort: dict[str, Any],
    values: list[Any], limit: int,
) -> None:  # fmt: skip
    order = parse_sort(sort)
    with filled(made, [*specs, ({path: 1, **{name: way for name, way in sort.items() if name != path}}, {})]) as at:
        for spec in ({"$or": branches}, {path: {"$in": values}}, {"$or": [{path: value} for value in values]}):
            for body in ({"filter": spec, "sort": sort}, {"filter": spec, "sort": sort, "limit": limit}):
                expected, got = map(batch, both(at, "find", body))
                if type(expected) is int or type(got) is int:
                    assert type(expected) is type(got) is int
                    continue
                assert [order.key(item) for item in expected] == [order.key(item) for item in got], body
                assert len({item["_id"] for item in got}) == len(got)


class Seen:
    """The requests that a store got."""

    def __init__(self) -> None:
        self.keys = self.documents = 0
        self.counts = True

    @contextmanager
    def watching(self) -> Iterator[None]:
        count_keys, fetch, fetch_many = View.count_keys, View.fetch, View.fetch_many
        scan_chunk, scan, keys_within = View.scan_chunk, View.scan, View.index_keys_within
        trials, has_few_values = choice.run_trials, choice._has_few_values

        def counted_keys(view: View, index: Any, low: bytes, high: bytes, *, backward: bool = False) -> Iterator[Any]:
            for item in view._entries_of(index, low, high, backward=backward):
                self.keys += self.counts
                yield item

        def counted_ranges(view: View, index: Any, ranges: Any) -> Iterator[Any]:
            for low, high in ranges:
                yield from view.index_keys(index, low, high)

        def counted_keys_within(*args: Any, **options: Any) -> Iterator[Any]:
            for item in keys_within(*args, **options):
                self.keys += self.counts
                yield item

        def counted_count(*args: Any) -> Any:
            counted = count_keys(*args)
            self.keys += counted.key_count * self.counts
            return counted

        def counted_fetch(*args: Any) -> Any:
            self.documents += self.counts
            return fetch(*args)

        def counted_fetch_many(*args: Any) -> Any:
            documents = fetch_many(*args)
            self.documents += len(documents) * self.counts
            return documents

        def counted_chunk(*args: Any, **options: Any) -> Any:
            chunk = scan_chunk(*args, **options)
            self.documents += len(chunk) * self.counts
            return chunk

        def counted_scan(*args: Any, **options: Any) -> Iterator[Any]:
            for item in scan(*args, **options):
                self.documents += self.counts
                yield item

        def uncounted(original: Any) -> Any:
            def run(*args: Any) -> Any:
                self.counts = False
                try:
                    return original(*args)
                finally:
                    self.counts = True

            return run

        with (
            mock.patch.multiple(
                View, index_keys=counted_keys, count_keys=counted_count, fetch=counted_fetch,
                fetch_many=counted_fetch_many, index_ranges=counted_ranges,
                index_keys_within=counted_keys_within, scan_chunk=counted_chunk, scan=counted_scan,
            ),
            mock.patch.object(choice, "run_trials", uncounted(trials)),
            mock.patch.object(choice, "_has_few_values", uncounted(has_few_values)),
        ):  # fmt: skip
            yield


def leaves(stage: dict[str, Any]) -> list[dict[str, Any]]:
    below = stage.get("inputStages") or ([stage["inputStage"]] if "inputStage" in stage else [])
    return [leaf for item in below for leaf in leaves(item)] if below else [stage]


def fields_of(stage: dict[str, Any], name: str) -> list[int]:
    below = stage.get("inputStages") or ([stage["inputStage"]] if "inputStage" in stage else [])
    here = [stage[name]] if name in stage else []
    return here + [value for item in below for value in fields_of(item, name)]


commands = st.one_of(
    st.tuples(st.just("find"), filters, sorts).map(
        lambda item: {"find": "indexed", "filter": item[1], **({"sort": item[2]} if item[2] else {})}
    ),
    filters.map(lambda spec: {"count": "indexed", "query": spec}),
    st.tuples(filters | st.just({}), paths).map(
        lambda item: {"distinct": "indexed", "key": item[1], "query": item[0]}
    ),
    filters.map(lambda spec: {"delete": "indexed", "deletes": [{"q": spec, "limit": 0}]}),
    filters.map(
        lambda spec: {"update": "indexed", "updates": [{"q": spec, "u": {"$set": {"z": 1}}, "multi": True}]}
    ),
    st.tuples(filters, sorts).map(
        lambda item: {
            "findAndModify": "indexed", "query": item[0], "remove": True, **({"sort": item[1]} if item[1] else {})
        }
    ),
)  # fmt: skip


@pytest.mark.long
@settings(max_examples=120, deadline=None)
@given(flat | documents, indexes, st.lists(commands, min_size=3, max_size=6))
def test_the_counts_of_explain_are_what_a_counting_store_saw(
    made: list[dict[str, Any]], specs: list[Any], asked: list[dict[str, Any]]
) -> None:
    with filled(made, specs) as at:
        for command in asked:
            seen = Seen()
            with seen.watching():
                reply: Any = at.run("t", {"explain": command, "verbosity": "allPlansExecution"})
            if "code" in reply or not reply["executionStats"]["executionSuccess"]:
                continue
            stats, plan = reply["executionStats"], reply["queryPlanner"]
            if {leaf["stage"] for leaf in leaves(plan["winningPlan"])} <= {
                "COLLSCAN",
                "IXSCAN",
                "COUNT_SCAN",
            } and not any(leaf.get("indexName") == "_id_" for leaf in leaves(plan["winningPlan"])):
                assert (stats["totalKeysExamined"], stats["totalDocsExamined"]) == (seen.keys, seen.documents), command
            assert sum(fields_of(stats["executionStages"], "keysExamined")) == stats["totalKeysExamined"], command
            if "find" in command:
                assert stats["nReturned"] == len(batch(at.run("t", {**command, "batchSize": 1000})))


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        made = [{"_id": n, "a": n % 100, "b": n % 7, "c": f"c{n % 13:02}", "d": n} for n in range(1000)]
        server.must("t", {"insert": "i", "documents": made})
        for key in ({"a": 1, "d": 1}, {"b": 1}, {"c": 1, "d": -1}):
            server.must("t", {"createIndexes": "i", "indexes": [{"key": key, "name": "_".join(key)}]})
        yield server


def explained(at: DrivenServer, command: dict[str, Any]) -> Any:
    return at.must("t", {"explain": command, "verbosity": "allPlansExecution"})


def names(stage: dict[str, Any]) -> list[str]:
    below = stage.get("inputStages", [])[:1] or ([stage["inputStage"]] if "inputStage" in stage else [])
    return [stage["stage"], *(name for item in below for name in names(item))]


@pytest.mark.parametrize(
    ("command", "plan"),
    [
        ({"find": "i", "filter": {"c": "c01"}, "projection": {"c": 1, "_id": 0}}, ["PROJECTION_COVERED", "IXSCAN"]),
        ({"find": "i", "filter": {"c": "c01"}, "projection": {"c": 1}}, ["PROJECTION_SIMPLE", "FETCH", "IXSCAN"]),
        ({"find": "i", "filter": {"c": "c01", "b": 1}, "projection": {"c": 1, "_id": 0}},
         ["PROJECTION_SIMPLE", "FETCH", "IXSCAN"]),
        ({"find": "i", "filter": {"a": {"$in": [1, 2]}}, "sort": {"d": 1}}, ["FETCH", "SORT_MERGE", "IXSCAN"]),
        ({"find": "i", "filter": {"$or": [{"a": 1}, {"c": "c01"}]}}, ["FETCH", "OR", "IXSCAN"]),
        ({"find": "i", "filter": {"$or": [{"a": 1}, {"a": 7}]}, "sort": {"d": 1}}, ["FETCH", "SORT_MERGE", "IXSCAN"]),
        ({"find": "i", "filter": {"a": {"$ne": 3}}}, ["FETCH", "IXSCAN"]),
        ({"count": "i", "query": {"a": {"$gte": 5, "$lt": 10}}}, ["COUNT", "COUNT_SCAN"]),
        ({"count": "i", "query": {"b": {"$ne": 2}}}, ["COUNT", "COUNT_SCAN"]),
        ({"distinct": "i", "key": "b"}, ["PROJECTION_COVERED", "DISTINCT_SCAN"]),
        ({"distinct": "i", "key": "d", "query": {"a": 5}}, ["PROJECTION_COVERED", "DISTINCT_SCAN"]),
        ({"distinct": "i", "key": "b", "query": {"a": 5}}, ["FETCH", "IXSCAN"]),
        ({"findAndModify": "i", "query": {"a": 5}, "sort": {"d": -1}, "remove": True}, ["DELETE", "FETCH", "IXSCAN"]),
        ({"findAndModify": "i", "query": {"a": 5}, "sort": {"b": -1}, "remove": True},
         ["DELETE", "SORT", "FETCH", "IXSCAN"]),
        ({"update": "i", "updates": [{"q": {"a": 5}, "u": {"$set": {"x": 1}}, "sort": {"d": 1}}]},
         ["UPDATE", "FETCH", "IXSCAN"]),
    ],
)  # fmt: skip
def test_a_plan(at: DrivenServer, command: dict[str, Any], plan: list[str]) -> None:
    assert names(explained(at, command)["queryPlanner"]["winningPlan"]) == plan


def test_a_group_by_the_field_of_an_index_reads_a_document_of_each(at: DrivenServer) -> None:
    pipeline = [{"$sort": {"c": 1, "d": -1}}, {"$group": {"_id": "$c", "last": {"$first": "$d"}}}]
    plan = explained(at, {"aggregate": "i", "pipeline": pipeline, "cursor": {}})["stages"][0]["$cursor"]
    assert names(plan["queryPlanner"]["winningPlan"]) == ["FETCH", "DISTINCT_SCAN"]
    assert plan["executionStats"]["totalDocsExamined"] == 13
    answer = batch(at.must("t", {"aggregate": "i", "pipeline": pipeline, "cursor": {}}))
    assert {item["_id"]: item["last"] for item in answer}["c12"] == 1000 - 1000 % 13 - 1


def test_a_first_of_a_queue_is_read_alone(at: DrivenServer) -> None:
    command = {"findAndModify": "i", "query": {"a": 5}, "sort": {"d": -1}, "update": {"$set": {"x": 1}}}
    stats = explained(at, command)["executionStats"]
    assert (stats["totalKeysExamined"], stats["totalDocsExamined"]) == (1, 1)
    assert at.must("t", command)["value"]["_id"] == 905


@pytest.mark.parametrize(
    ("spec", "bounds"),
    [
        ({"a": {"$ne": 3}}, ["[MinKey, 3)", "(3, MaxKey]"]),
        ({"a": {"$nin": [3, "x"]}}, ["[MinKey, 3)", "(3, \"x\")", "(\"x\", MaxKey]"]),
        ({"a": {"$not": {"$gt": 3}}}, ["[MinKey, 3]", "(inf, MaxKey]"]),
        ({"a": {"$not": {"$lt": "x"}}}, ["[MinKey, \"\")", "[\"x\", MaxKey]"]),
        ({"a": {"$ne": None}}, ["[MinKey, null)", "(null, MaxKey]"]),
        ({"a": {"$exists": False}}, ["[null, null]"]),
        ({"a": {"$type": "string"}}, ["[\"\", {})"]),
        ({"a": {"$type": ["number", "bool"]}}, ["[nan, inf]", "[false, true]"]),
        ({"a": {"$mod": [3, 1]}}, ["[nan, inf]"]),
    ],
)  # fmt: skip
def test_bounds(at: DrivenServer, spec: dict[str, Any], bounds: list[str]) -> None:
    plan = explained(at, {"find": "i", "filter": spec})["queryPlanner"]["winningPlan"]
    assert plan["inputStage"]["indexBounds"]["a"] == bounds


def test_the_winner_of_a_trial_is_remembered_by_shape(at: DrivenServer) -> None:
    def ask(value: int) -> Any:
        return batch(at.must("t", {"find": "i", "filter": {"a": value, "b": {"$gt": 1}}}))

    with mock.patch.object(choice, "run_trials", wraps=choice.run_trials) as trials:
        for value in range(6):
            ask(value)
        assert trials.call_count == 2  # the second makes the entry active
        at.must("t", {"createIndexes": "i", "indexes": [{"key": {"d": 1}, "name": "d"}]})
        ask(1)
        assert trials.call_count == 3


def test_a_trial_shows_what_each_way_did(at: DrivenServer) -> None:
    plan = explained(at, {"find": "i", "filter": {"a": 5, "b": 3}})
    assert plan["queryPlanner"]["winningPlan"]["inputStage"]["indexName"] == "a_d"
    assert [item["inputStage"]["indexName"] for item in plan["queryPlanner"]["rejectedPlans"]] == ["b"]
    won, beaten = plan["executionStats"]["allPlansExecution"]
    assert won["executionStages"]["isEOF"] == 1 and won["totalKeysExamined"] == 10 and won["score"] > beaten["score"]
    assert plan["executionStats"]["totalKeysExamined"] == 10


def test_few_documents_are_sorted_rather_than_all_read_in_order_of_id(at: DrivenServer) -> None:
    find = {"find": "i", "filter": {"a": 5}, "sort": {"_id": -1}, "limit": 2}
    plan = explained(at, find)
    assert names(plan["queryPlanner"]["winningPlan"]) == ["SORT", "FETCH", "IXSCAN"]
    assert plan["executionStats"]["totalDocsExamined"] == 10
    everything = explained(at, {**find, "filter": {"a": {"$gte": 0}}})
    assert everything["executionStats"]["totalDocsExamined"] == 2


def test_a_command_that_pauses_while_it_chooses_a_plan_is_answered(at: DrivenServer) -> None:
    """The shape of the filter is looked at with ticks: the view that the trial reads must outlive them."""
    for command in (
        {"find": "i", "filter": {"a": 5, "b": 5}}, {"find": "i", "filter": {"a": 5, "c": "c05"}, "sort": {"_id": 1}},
        {"count": "i", "query": {"a": 5, "b": 5}},
        {"aggregate": "i", "pipeline": [{"$match": {"a": 5, "b": 5}}], "cursor": {}},
    ):  # fmt: skip
        request = at.request("t", command)
        reply, _ = tick_count(at.engine.run_read, at.engine.command(request), request)
        assert decode(reply)["ok"] == 1
    reply, _ = at.in_turns("t", {"delete": "i", "deletes": [{"q": {"a": 5, "b": 5}, "limit": 0}]})
    assert reply["n"] == 2


def test_a_trial_ends_where_a_look_at_a_document_takes_long() -> None:
    with DrivenServer() as server:
        documents = [{"_id": number, "a": 1, "b": 1} for number in range(200)]
        server.must("t", {"insert": "slow", "documents": documents})
        indexes = [{"name": name, "key": {name: 1}} for name in ("a", "b")]
        server.must("t", {"createIndexes": "slow", "indexes": indexes})
        numbers = {
            "$filter": {"input": {"$range": [0, 300_000]}, "cond": {"$lt": ["$$this", 0]}}
        }  # takes much more than 20 ms
        body = {"find": "slow", "filter": {"a": 1, "b": 1, "$expr": {"$eq": [{"$size": numbers}, 0]}}, "limit": 3}
        shown = server.must("t", {"explain": body, "verbosity": "queryPlanner"})["queryPlanner"]
        assert shown["rejectedPlans"]
        made: list[trial.Trial] = []
        original = trial.run_trials
        with (
            mock.patch.object(limits, "DOCUMENT_SECONDS_MAX", 60.0),  # a slow machine takes more than 180 ms
            mock.patch.object(choice, "run_trials", lambda *args: made.extend(original(*args)) or made),
        ):
            first = server.must("t", body)["cursor"]["firstBatch"]
        assert [document["_id"] for document in first] == [0, 1, 2]
        assert len(made) == 2 and sum(each.works for each in made) <= 2


@pytest.mark.parametrize("backward", [False, True])
def test_a_walk_goes_on_in_the_midst_of_many_ranges(backward: bool) -> None:
    """Most of them are empty: they are read some at a time, and none that was read is looked at again."""
    with DrivenServer() as server:
        numbers = range(0, 3000, 100)
        server.must("t", {"insert": "c", "documents": [{"_id": number, "a": number} for number in numbers]})
        server.must("t", {"createIndexes": "c", "indexes": [{"name": "a", "key": {"a": 1}}]})
        body = {"find": "c", "filter": {"a": {"$in": list(range(3000))}}, "sort": {"a": -1 if backward else 1}}
        reply = server.must("t", {**body, "hint": "a", "batchSize": 4})["cursor"]
        read = [document["a"] for document in reply["firstBatch"]]
        while reply["id"]:
            reply = server.must("t", {"getMore": reply["id"], "collection": "c", "batchSize": 4})["cursor"]
            read += [document["a"] for document in reply["nextBatch"]]
        assert read == sorted(numbers, reverse=backward)
        update = {"q": {"a": {"$in": list(range(3000))}}, "u": {"$set": {"b": 1}}, "multi": True, "hint": "a"}
        assert server.must("t", {"update": "c", "updates": [update]})["nModified"] == len(numbers)


@pytest.mark.long
def test_values_of_two_fields_do_not_make_a_range_of_each_pair() -> None:
    """20,000 of each would be 400 million ranges: the first field alone bounds the keys."""
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": number, "a": number, "b": 1} for number in range(50)]})
        server.must("t", {"createIndexes": "c", "indexes": [{"name": "ab", "key": {"a": 1, "b": -1}}]})
        many = list(range(20_000))
        for body in (
            {"find": "c", "filter": {"a": {"$in": many}, "b": {"$in": many[1:]}}, "hint": "ab", "limit": 1000},
            {"find": "c", "filter": {"a": {"$in": many}, "b": {"$nin": many[2:]}}, "hint": "ab", "limit": 1000},
            {"find": "c", "filter": {"a": {"$in": many}, "b": {"$in": many[1:]}}, "sort": {"a": -1}, "limit": 1000},
        ):
            shown = server.must("t", {**body, "batchSize": 1000})["cursor"]["firstBatch"]
            assert sorted(document["_id"] for document in shown) == list(range(50))
        assert server.must("t", {"count": "c", "query": {"a": {"$in": many}, "b": {"$in": many[2:]}}})["n"] == 0


EMPTY_RANGES = {"a": {"$in": list(range(1, 3000))}}
WRITES_OF_NOTHING: dict[str, dict[str, Any]] = {
    "delete": {"delete": "c", "deletes": [{"q": EMPTY_RANGES, "limit": 0, "hint": "a"}]},
    "findAndModify": {"findAndModify": "c", "query": EMPTY_RANGES, "update": {"$set": {"b": 1}}, "hint": "a"},
    "update": {"update": "c", "updates": [{"q": EMPTY_RANGES, "u": {"$set": {"b": 1}}, "multi": True, "hint": "a"}]},
}


@pytest.mark.parametrize("what", WRITES_OF_NOTHING)
def test_a_write_takes_turns_and_can_be_ended_where_ranges_are_empty(what: str) -> None:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 0, "a": 0}, {"_id": 1, "a": 3000}]})
        server.must("t", {"createIndexes": "c", "indexes": [{"name": "a", "key": {"a": 1}}]})
        answer, looks = looks_of_write(server, WRITES_OF_NOTHING[what])
        assert decode(answer)["ok"] == 1.0
        assert sum(looks) == 2999 and max(looks) <= 512
        answer, looks = looks_of_write(server, WRITES_OF_NOTHING[what], looks_max=1000)
        assert decode(answer)["code"] == 11601
        assert 1000 <= sum(looks) < 2000


def looks_of_write(server: DrivenServer, body: dict[str, Any], looks_max: int = 10_000) -> tuple[Any, list[int]]:
    """The reply, and how many ranges of keys were looked at in each turn. It is interrupted behind `looks_max`."""
    request = server.request("t", body)
    txn, turns, looks = server.store.begin(), Turns(seconds=0.0), [0]
    index_ranges = View.index_ranges

    def counted(self: View, index: Any, ranges: Any) -> Any:
        looks[-1] += len(ranges)
        return index_ranges(self, index, ranges)

    with mock.patch.object(View, "index_ranges", counted):
        answer = turns.run(server.engine.run_write, server.engine.command(request), request, txn)
        while isinstance(answer, Turn):
            if sum(looks) >= looks_max:
                answer.interruption = Interrupted(11601, "operation was interrupted")
            looks.append(0)
            answer = turns.resume(answer, txn)
    server.store.abandon(txn)
    return answer, looks
