"""Indexes with a collation: which operations use them, and that they never change a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.store.check.directory import check
from headrace.store.indexes import field_keys
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

SWEDISH = {"locale": "sv", "strength": 2}


def results(at: DrivenServer, name: str, spec: Any, sort: Any, collation: Any) -> Any:
    body = {"find": name, "filter": spec, "sort": sort, "batchSize": 1000}
    reply = at.run("t", body if collation is None else {**body, "collation": collation})
    assert isinstance(reply, dict)
    return reply["cursor"]["firstBatch"] if "cursor" in reply else reply["code"]


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
        earlier.setattr(field_keys, "version", lambda: "1.0")
        with DrivenServer(tmp_path, clock=FakeClock()) as at:
            at.must("t", {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a", "collation": SWEDISH}]})
            at.must("t", {"insert": "c", "documents": [{"_id": number, "a": "x"} for number in range(5)]})
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        assert "the index a of t.c is built" in caplog.text
        assert winning(at, {"find": "c", "filter": {"a": "X"}, "collation": SWEDISH})["stage"] == "IXSCAN"
        assert len(results(at, "c", {"a": "X"}, {}, SWEDISH)) == 5
    assert check(tmp_path).problems == []
