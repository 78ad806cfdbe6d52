"""While another thread commits, readers see what has been published, which their `operationTime` says."""

from __future__ import annotations

import pytest

import headrace
from tests.held_commits import HeldCommits

from .raw import RawClient


def test_what_a_read_sees_is_not_later_than_its_operation_time(monkeypatch: pytest.MonkeyPatch) -> None:
    commits = HeldCommits()
    with headrace.Server() as server, RawClient(server.address) as client, RawClient(server.address) as other:
        client.ask({"insert": "c", "documents": [{"_id": 0}]})
        commits.hold(monkeypatch)
        client.send({"insert": "c", "documents": [{"_id": 1}]})
        assert commits.synced.wait(60)
        before = other.ask({"find": "c"})
        commits.go_on.set()
        answer = client.receive()[1]
        after = other.ask({"find": "c"})
    assert len(before["cursor"]["firstBatch"]) == 1 and before["operationTime"] < answer["operationTime"]
    assert len(after["cursor"]["firstBatch"]) == 2 and after["operationTime"] >= answer["operationTime"]
