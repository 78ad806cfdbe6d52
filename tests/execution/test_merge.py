"""`$merge` into a collection that has the documents already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bson import decode, encode

from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

MODES: tuple[Any, ...] = ("merge", "replace", [{"$replaceWith": "$$new"}])


def entry_count(at: DrivenServer) -> int:
    """How many entries the oplog has."""
    with at.store.reading() as view:
        return sum(1 for _ in view.entries(0))


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("value", [1.0, True], ids=repr)
def test_a_value_that_is_equal_but_of_another_type_is_written(tmp_path: Path, mode: Any, value: Any) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        at.must("t", {"insert": "c", "documents": [{"_id": 1, "a": 1}]})
        at.must("t", {"insert": "s", "documents": [{"_id": 1, "a": value}]})
        merge = {"aggregate": "s", "pipeline": [{"$merge": {"into": "c", "whenMatched": mode}}], "cursor": {}}
        at.must("t", merge)
        (stored,) = at.must("t", {"find": "c"})["cursor"]["firstBatch"]
        assert encode(stored) == encode({"_id": 1, "a": value})
        before = entry_count(at)
        at.must("t", merge)
        assert entry_count(at) == before


@pytest.mark.parametrize("options", [{"viewOn": "s", "pipeline": []}, {"timeseries": {"timeField": "t"}}], ids=str)
def test_nothing_is_written_under_the_name_of_a_view_that_is_made_meanwhile(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    merge = {"aggregate": "s", "pipeline": [{"$match": {"a": {"$gte": 0}}}, {"$merge": {"into": "c"}}], "cursor": {}}
    codes = []
    for pause in range(1, 12):
        with DrivenServer(tmp_path / str(pause), clock=FakeClock()) as at:
            at.must("t", {"insert": "s", "documents": [{"_id": n, "a": n} for n in range(3)]})
            made: list[int] = []

            def between(count: int, at: DrivenServer = at, pause: int = pause, made: list[int] = made) -> None:
                if count == pause and at.run("t", {"create": "c", **options})["ok"] == 1.0:
                    made.append(at.store.last_position)

            reply, _ = at.in_turns("t", merge, between)
            codes.append(reply.get("code"))
            with at.store.reading() as view:
                written = [decode(raw) for _, raw in view.entries(made[0] + 1)] if made else []
            assert not written, (pause, written)
    assert 166 in codes


def merged(at: DrivenServer, spec: Any, document: dict[str, Any], **options: Any) -> list[dict[str, Any]] | int:
    """The target after a merge of one document; the code if it is refused."""
    at.must("t", {"delete": "s", "deletes": [{"q": {}, "limit": 0}]})
    at.must("t", {"insert": "s", "documents": [document]})
    answer = at.run("t", {"aggregate": "s", "pipeline": [{"$merge": spec}], "cursor": {}, **options})
    if "code" in answer:
        return int(answer["code"])
    found: list[dict[str, Any]] = at.must("t", {"find": "c", "sort": {"_id": 1}})["cursor"]["firstBatch"]
    return found


def test_the_index_that_finds_the_match_has_the_collation_of_the_pipeline(tmp_path: Path) -> None:
    loose = {"locale": "en", "strength": 2}
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        spec = {"key": {"k": 1}, "name": "k", "unique": True, "collation": loose}
        at.must("t", {"createIndexes": "c", "indexes": [spec]})
        at.must("t", {"insert": "c", "documents": [{"_id": 1, "k": "a"}]})
        merge = {"into": "c", "on": "k"}
        assert merged(at, merge, {"_id": 1, "k": "A", "n": 1}) == 51183
        assert merged(at, merge, {"_id": 1, "k": "A", "n": 1}, collation=loose) == [{"_id": 1, "k": "A", "n": 1}]
        assert merged(at, {"into": "c", "on": "_id"}, {"_id": 1}, collation=loose) == 51183
        assert merged(at, {"into": "c"}, {"_id": 1, "k": "b"}, collation=loose) == [{"_id": 1, "k": "b", "n": 1}]


def test_a_partial_index_does_not_find_the_match(tmp_path: Path) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        spec = {"key": {"k": 1}, "name": "k", "unique": True, "partialFilterExpression": {"k": {"$gt": 5}}}
        at.must("t", {"createIndexes": "c", "indexes": [spec]})
        assert merged(at, {"into": "c", "on": "k"}, {"_id": 1, "k": 1}) == 51183


def test_a_missing_unique_index_is_refused_before_the_first_document(tmp_path: Path) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        merge = {"aggregate": "s", "pipeline": [{"$merge": {"into": "c", "on": "k"}}], "cursor": {}}
        assert at.run("t", merge)["code"] == 51183
        at.must("t", {"insert": "c", "documents": [{"_id": 1}]})
        assert at.run("t", merge)["code"] == 51183
        at.must("t", {"createIndexes": "c", "indexes": [{"key": {"k": 1}, "name": "k", "unique": True}]})
        at.must("t", merge)


@pytest.mark.parametrize(
    "spec",
    [
        {"into": "c", "let": None, "whenMatched": [{"$set": {"a": "$$new.a"}}]}, {"into": "c", "whenNotMatched": None},
        {"into": {"db": None, "coll": "c"}}, {"into": {"db": "", "coll": "c"}},
    ],
    ids=str,
)  # fmt: skip
def test_null_is_no_option(tmp_path: Path, spec: dict[str, Any]) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        at.must("t", {"insert": "c", "documents": [{"_id": 1}]})
        assert merged(at, spec, {"_id": 1, "a": 5}) == [{"_id": 1, "a": 5}]
        assert merged(at, "", {"_id": 1}) == 73


def test_an_on_field_may_be_a_path(tmp_path: Path) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        index = {"key": {"a.b": 1}, "name": "i", "unique": True}
        at.must("t", {"createIndexes": "c", "indexes": [index]})
        at.must("t", {"insert": "c", "documents": [{"_id": 1, "a": {"b": 5}, "n": 1}]})
        merge = {"into": "c", "on": "a.b", "whenMatched": [{"$set": {"n": "$$new.n"}}]}
        assert merged(at, merge, {"_id": 2, "a": {"b": 5}, "n": 7}) == [{"_id": 1, "a": {"b": 5}, "n": 7}]


@pytest.mark.parametrize(
    ("mode", "inserted"),
    [
        ("merge", {"_id": 2, "k": None, "b": 2, "z": 1}), ("keepExisting", {"_id": 2, "k": None, "b": 2, "z": 1}),
        ("replace", {"_id": 2, "z": 1, "b": 2}), ([{"$set": {"n": 1}}], {"_id": 2, "z": 1, "b": 2}),
        ("fail", {"_id": 2, "z": 1, "b": 2}),
    ],
    ids=str,
)  # fmt: skip
def test_a_merge_of_fields_inserts_as_an_upsert(tmp_path: Path, mode: Any, inserted: dict[str, Any]) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        at.must("t", {"createIndexes": "c", "indexes": [{"key": {"k": 1}, "name": "i", "unique": True}]})
        found = merged(at, {"into": "c", "on": "k", "whenMatched": mode}, {"_id": 2, "z": 1, "b": 2})
        assert isinstance(found, list)
        assert [encode(document) for document in found] == [encode(inserted)]


@pytest.mark.parametrize(
    ("on", "code"),
    [("", 40352), ("a.", 40353), (".a", 15998), ("$a", 16410), ("a\0b", 16411), (["a", ""], 40352)],
    ids=repr,
)  # fmt: skip
def test_an_on_field_is_checked_as_a_path(tmp_path: Path, on: Any, code: int) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        assert merged(at, {"into": "c", "on": on}, {"_id": 1}) == code
