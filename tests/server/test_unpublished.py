"""While another thread commits, readers see what has been published, which their `operationTime` says."""

from __future__ import annotations

import threading

import pytest

import headrace
from headrace.store.store import Store
from headrace.store.write_transaction import WriteTransaction

from .raw import RawClient


def test_what_a_read_sees_is_not_later_than_its_operation_time(monkeypatch: pytest.MonkeyPatch) -> None:
    committed, go_on, sync = threading.Event(), threading.Event(), Store.sync

    def held(store: Store, txn: WriteTransaction) -> None:
        sync(store, txn)
        if threading.current_thread().name.startswith("headrace-commit"):
            committed.set()
            assert go_on.wait(60)

    with headrace.Server() as server, RawClient(server.address) as client, RawClient(server.address) as other:
        client.ask({"insert": "c", "documents": [{"_id": 0}]})
        monkeypatch.setattr(Store, "sync", held)
        monkeypatch.setattr("headrace.server.writer.SLOW_COMMIT_MS", -1.0)
        client.send({"insert": "c", "documents": [{"_id": 1}]})
        assert committed.wait(60)
        before = other.ask({"find": "c"})
        go_on.set()
        answer = client.receive()[1]
        after = other.ask({"find": "c"})
    assert len(before["cursor"]["firstBatch"]) == 1 and before["operationTime"] < answer["operationTime"]
    assert len(after["cursor"]["firstBatch"]) == 2 and after["operationTime"] >= answer["operationTime"]
