"""An index that is prepared to be unique refuses duplicates from whomever they come, and at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from bson import Binary, Int64

from headrace.dispatch.wait import Wait
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 0, "x": 0}]})
        server.must("t", {"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}]})
        server.must("t", {"collMod": "c", "index": {"name": "x", "prepareUnique": True}})
        yield server


class Statements:
    """A client's transaction."""

    def __init__(self, at: DrivenServer) -> None:
        self._at = at
        self._fields = {"lsid": {"id": Binary(uuid4().bytes, 4)}, "txnNumber": Int64(1), "autocommit": False}
        self._is_first = True

    def run(self, body: dict[str, Any]) -> dict[str, Any]:
        more = {"startTransaction": True} if self._is_first else {}
        self._is_first = False
        database = "admin" if "commitTransaction" in body else "t"
        answer = self._at.run(database, {**body, **more, **self._fields})
        assert isinstance(answer, dict)
        return answer

    def insert(self, number: int, x: int) -> dict[str, Any]:
        return self.run({"insert": "c", "documents": [{"_id": number, "x": x}]})


def test_of_two_transactions_with_one_key_the_second_conflicts(at: DrivenServer) -> None:
    first, second = Statements(at), Statements(at)
    assert first.insert(1, 7)["n"] == 1
    assert second.insert(2, 8)["n"] == 1
    assert second.insert(3, 7)["code"] == 112
    assert first.run({"commitTransaction": 1})["ok"] == 1
    assert Statements(at).insert(4, 7)["writeErrors"][0]["code"] == 11000


def test_what_was_brought_since_a_transaction_began_conflicts(at: DrivenServer) -> None:
    first, second = Statements(at), Statements(at)
    for transaction in (first, second):
        transaction.run({"find": "c", "filter": {}})
    at.must("t", {"insert": "c", "documents": [{"_id": 1, "x": 7}]})
    assert first.insert(2, 7)["code"] == 112
    third = Statements(at)
    third.insert(3, 9)
    assert third.run({"commitTransaction": 1})["ok"] == 1
    assert second.insert(4, 9)["code"] == 112


def test_a_write_waits_for_a_transaction_with_its_key(at: DrivenServer) -> None:
    transaction = Statements(at)
    transaction.insert(1, 7)
    body = {"insert": "c", "documents": [{"_id": 2, "x": 7}]}
    assert isinstance(at.run("t", body), Wait)
    transaction.run({"commitTransaction": 1})
    refused = at.run("t", body)
    assert isinstance(refused, dict) and refused["writeErrors"][0]["code"] == 11000
    unique = {"collMod": "c", "index": {"name": "x", "unique": True}}
    assert at.must("t", unique)["unique_new"] is True


def test_documents_of_one_insert_do_not_share_a_key(at: DrivenServer) -> None:
    documents = [{"_id": number, "x": 5} for number in range(1, 4)]
    refused = at.run("t", {"insert": "c", "documents": documents, "ordered": False})
    assert isinstance(refused, dict) and refused["n"] == 1
    assert [error["code"] for error in refused["writeErrors"]] == [11000, 11000]
