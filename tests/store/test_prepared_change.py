"""The keys of long documents are made before they are written: what others do meanwhile counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Int64

from headrace import limits
from headrace.store.check.directory import check
from headrace.store.indexes.prepared_change import PreparedChange
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.turns import Turns

KEYS: dict[str, dict[str, Any]] = {
    "array": {"key": {"n": 1}}, "unique": {"key": {"n": -1}, "unique": True}, "wildcard": {"key": {"$**": 1}},
    "prepared": {"key": {"n": 1}, "prepareUnique": True}, "path": {"key": {"a.b": 1, "x": 1}},
}  # fmt: skip
WRITES: dict[str, dict[str, Any]] = {
    "insert": {"insert": "c", "documents": [{"_id": 9, "n": list(range(9000, 11_000)), "a": [{"b": 1}]}]},
    "update": {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$push": {"n": {"$each": [7000, -1, 3]}}}}]},
    "delete": {"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]},
}
MEANWHILE: dict[str, list[dict[str, Any]]] = {
    "nothing": [],
    "an index": [{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "y"}]}],
    "no index": [{"dropIndexes": "c", "index": "x"}],
    "another index": [
        {"dropIndexes": "c", "index": "x"},
        {"createIndexes": "c", "indexes": [{"key": {"n": 1, "x": 1}, "name": "x"}]},
    ],
    "a change": [{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"n": [5, 6], "x": 2}}}]}],
    "a document": [{"insert": "c", "documents": [{"_id": 5, "n": [8000]}]}],
    "no document": [{"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]}],
}

SESSION: dict[str, Any] = {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(1), "autocommit": False}
START: dict[str, Any] = {**SESSION, "startTransaction": True}


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DrivenServer]:
    """At the end its indexes have the keys of its documents."""
    monkeypatch.setattr(limits, "PREPARED_BYTES", 1024)
    with DrivenServer(tmp_path, clock=FakeClock()) as server:
        yield server
    assert check(tmp_path).problems == []


def begun(at: DrivenServer, what: str) -> None:
    at.must("t", {"createIndexes": "c", "indexes": [{"name": "x", **KEYS[what]}]})
    document = {"_id": 1, "x": 1, "n": list(range(2000)), "a": [{"b": n % 7} for n in range(100)]}
    at.must("t", {"insert": "c", "documents": [document]})


@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("what", KEYS)
def test_what_others_do_meanwhile_counts(at: DrivenServer, what: str, write: str, meanwhile: str) -> None:
    begun(at, what)
    reply, pauses = at.in_turns("t", WRITES[write], lambda count: others(at, meanwhile) if count == 5 else None)
    assert pauses >= 5
    assert reply["n"] == (write == "insert" or meanwhile != "no document")


def others(at: DrivenServer, meanwhile: str) -> None:
    for body in MEANWHILE[meanwhile]:
        at.must("t", body)


@pytest.mark.parametrize("what", ["unique", "prepared"])
def test_a_key_that_comes_meanwhile_refuses_it(at: DrivenServer, what: str) -> None:
    begun(at, what)
    taken = {"insert": "c", "documents": [{"_id": 5, "n": [9500]}]}
    reply, _ = at.in_turns("t", WRITES["insert"], lambda count: at.must("t", taken) if count == 5 else None)
    assert (reply["n"], reply["writeErrors"][0]["code"]) == (0, 11000)
    push = {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$push": {"n": 9500}}}]}
    reply, _ = at.in_turns("t", push)
    assert (reply["n"], reply["writeErrors"][0]["code"]) == (0, 11000)


@pytest.mark.parametrize("write", WRITES)
def test_it_is_taken_where_nobody_is_in_the_way(
    at: DrivenServer, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    begun(at, "array")
    make, made = PreparedChange.make, []
    monkeypatch.setattr(PreparedChange, "make", lambda *arguments: made.append(make(*arguments)))
    at.in_turns("t", WRITES[write])
    assert len(made) == 1


def test_a_dropped_collection_gets_no_document(at: DrivenServer) -> None:
    begun(at, "array")
    gone = {"drop": "c"}
    reply, _ = at.in_turns("t", WRITES["insert"], lambda count: at.must("t", gone) if count == 5 else None)
    assert (reply["n"], reply["writeErrors"][0]["code"]) == (0, 175)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("what", KEYS)
def test_a_transaction_changes_the_entries_as_well(at: DrivenServer, what: str, write: str) -> None:
    begun(at, what)
    assert Turns(seconds=float("inf")).run(at.must, "t", {**WRITES[write], **START})["n"] == 1
    at.must("admin", {"commitTransaction": 1, **SESSION})


@pytest.mark.parametrize("write", ["insert", "update"])
def test_a_transaction_that_holds_one_of_its_keys_is_waited_for(at: DrivenServer, write: str) -> None:
    begun(at, "unique")
    key = {"insert": 9500, "update": 7000}[write]
    at.must("t", {"insert": "c", "documents": [{"_id": 5, "n": [key]}], **START})
    commit = {"commitTransaction": 1, **SESSION}
    reply, pauses = at.in_turns("t", WRITES[write], lambda count: at.must("admin", commit) if count == 200 else None)
    assert pauses >= 200, "it has waited: alone it makes fewer"
    assert (reply["n"], reply["writeErrors"][0]["code"]) == (0, 11000)
