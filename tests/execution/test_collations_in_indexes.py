"""Indexes with a collation: which operations use them, and that they never change a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.query.collation import parse_collation
from headrace.query.sort import parse_sort
from headrace.store.check.directory import check
from headrace.store.indexes import collated_keys
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

SWEDISH = {"locale": "sv", "strength": 2}
COLLATIONS: list[dict[str, Any] | None] = [None, SWEDISH, {"locale": "en", "strength": 1}, {"locale": "sv"}]
collations = st.sampled_from(COLLATIONS)
texts = st.sampled_from(
    ["", "a", "A", "á", "å", "Å", "b", "z", "Z", "ab", "aB", "10", "9", "a\0", "x" * 300, "X" * 300]
)
scalars = texts | st.sampled_from([None, 1, 2.5, True])
inner = st.dictionaries(st.sampled_from(["b", "c"]), scalars | st.lists(texts, max_size=2), max_size=2)
values = scalars | inner | st.lists(scalars | inner, max_size=3)
documents = st.lists(st.dictionaries(st.sampled_from(["a", "b"]), values, max_size=2), min_size=1, max_size=12)
paths = st.sampled_from(["a", "b", "a.b"])
operators = st.one_of(
    st.tuples(st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]), scalars | inner),
    st.tuples(st.sampled_from(["$in", "$nin"]), st.lists(scalars, max_size=4)),
    st.tuples(st.just("$regex"), st.sampled_from(["^a", "b", "^A"])),
    st.tuples(st.just("$exists"), st.booleans()),
)
filters = st.dictionaries(paths, st.lists(operators, min_size=1, max_size=2).map(dict) | values, max_size=2)
filters = filters | st.lists(filters, min_size=1, max_size=2).map(lambda branches: {"$or": branches})
sorts = st.dictionaries(paths, st.sampled_from([1, -1]), max_size=2)
indexes = st.lists(
    st.tuples(
        st.dictionaries(paths, st.sampled_from([1, -1]), min_size=1, max_size=2),
        collations,
        st.sampled_from([{}, {"sparse": True}, {"partialFilterExpression": {"a": {"$gte": "a"}}}]),
    ),
    min_size=1,
    max_size=3,
)


def results(at: DrivenServer, name: str, spec: Any, sort: Any, collation: Any) -> Any:
    body = {"find": name, "filter": spec, "sort": sort, "batchSize": 1000}
    reply = at.run("t", body if collation is None else {**body, "collation": collation})
    assert isinstance(reply, dict)
    return reply["cursor"]["firstBatch"] if "cursor" in reply else reply["code"]


@settings(max_examples=150, deadline=None)
@given(documents, indexes, st.lists(st.tuples(filters, sorts, collations), min_size=2, max_size=6))
def test_an_index_with_a_collation_never_changes_a_result(
    made: list[dict[str, Any]], specs: list[Any], queries: list[Any]
) -> None:
    with DrivenServer(clock=FakeClock()) as at:
        for number, (key, collation, options) in enumerate(specs):
            spec = {"key": key, "name": f"i{number}", **options}
            at.run(
                "t", {"createIndexes": "indexed", "indexes": [{**spec, "collation": collation or {"locale": "simple"}}]}
            )
        for number, document in enumerate(made):
            reply = at.run("t", {"insert": "indexed", "documents": [{"_id": number, **document}]})
            if isinstance(reply, dict) and reply["n"]:
                at.must("t", {"insert": "plain", "documents": [{"_id": number, **document}]})
        for spec, sort, collation in queries:
            expected, got = (results(at, name, spec, sort, collation) for name in ("plain", "indexed"))
            if type(expected) is int or type(got) is int:
                assert expected == got or 2 in (expected, got)
                continue
            assert sorted(item["_id"] for item in got) == sorted(item["_id"] for item in expected)
            order = parse_sort(sort, parse_collation(collation))
            assert [order.key(item) for item in got] == [order.key(item) for item in expected]
            count = {"count": "indexed", "query": spec}
            reply = at.run("t", count if collation is None else {**count, "collation": collation})
            assert isinstance(reply, dict) and reply["n"] == len(expected)


def winning(at: DrivenServer, command: dict[str, Any]) -> dict[str, Any]:
    """The lowest stage of the plan."""
    stage = at.must("t", {"explain": command})["queryPlanner"]["winningPlan"]
    while "inputStage" in stage:
        stage = stage["inputStage"]
    return stage


def test_strings_need_the_same_collation_and_others_do_not() -> None:
    with DrivenServer(clock=FakeClock()) as at:
        at.must("t", {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a", "collation": SWEDISH}]})
        at.must("t", {"insert": "c", "documents": [{"_id": n, "a": v} for n, v in enumerate(["Å", "å", "z", 5])]})
        same = winning(at, {"find": "c", "filter": {"a": "Å"}, "collation": SWEDISH})
        assert same["stage"] == "IXSCAN" and same["indexBounds"]["a"][0].startswith("[CollationKey(0x")
        assert same["collation"]["locale"] == "sv"
        assert len(results(at, "c", {"a": "Å"}, {}, SWEDISH)) == 2
        assert winning(at, {"find": "c", "filter": {"a": "Å"}})["stage"] == "COLLSCAN"
        assert winning(at, {"find": "c", "filter": {"a": "Å"}, "collation": {"locale": "sv"}})["stage"] == "COLLSCAN"
        assert winning(at, {"find": "c", "filter": {"a": 5}})["indexBounds"] == {"a": ["[5, 5]"]}
        sort = {"find": "c", "sort": {"a": 1}}
        assert winning(at, {**sort, "collation": SWEDISH})["stage"] == "IXSCAN"
        assert winning(at, sort)["stage"] == "COLLSCAN"
        assert [item["a"] for item in results(at, "c", {}, {"a": -1}, SWEDISH)][2:] == ["z", 5]


def test_the_index_on_id_has_the_collation_of_its_collection(tmp_path: Path) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        at.must("t", {"create": "c", "collation": SWEDISH})
        at.must("t", {"insert": "c", "documents": [{"_id": "å"}, {"_id": "b"}, {"_id": 1}]})
        reply = at.run("t", {"insert": "c", "documents": [{"_id": "Å"}]})
        assert isinstance(reply, dict)
        (error,) = reply["writeErrors"]
        assert error["code"] == 11000 and 'index: _id_ collation: { locale: "sv"' in error["errmsg"]
        assert error["keyValue"] == {"_id": "Å"} and error["collation"]["strength"] == 2
        assert results(at, "c", {"_id": "Å"}, {}, None) == [{"_id": "å"}]
        assert winning(at, {"find": "c", "filter": {"_id": "Å"}})["indexName"] == "_id_"
        assert results(at, "c", {"_id": "Å"}, {}, {"locale": "simple"}) == []
        assert at.must("t", {"delete": "c", "deletes": [{"q": {"_id": "Å"}, "limit": 1}]})["n"] == 1
        at.must("t", {"insert": "c", "documents": [{"_id": "Å"}]})
    assert check(tmp_path).problems == []


def test_keys_of_another_version_of_icu_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(collated_keys, "version", lambda: "1.0")
        with DrivenServer(tmp_path, clock=FakeClock()) as at:
            at.must("t", {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a", "collation": SWEDISH}]})
            at.must("t", {"insert": "c", "documents": [{"_id": number, "a": "x"} for number in range(5)]})
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        assert "the index a of t.c is built" in caplog.text
        assert winning(at, {"find": "c", "filter": {"a": "X"}, "collation": SWEDISH})["stage"] == "IXSCAN"
        assert len(results(at, "c", {"a": "X"}, {}, SWEDISH)) == 5
    assert check(tmp_path).problems == []
