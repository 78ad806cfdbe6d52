"""Transactions through sockets: a driver's own helper, writes that wait for a lock, and the wake-up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure

import headrace


@pytest.fixture
def client() -> Iterator[Any]:
    with headrace.Server() as server, pymongo.MongoClient(server.uri) as made:
        made.d.c.insert_one({"_id": 1, "a": 0})
        yield made


def test_a_drivers_callback_is_run_again_until_it_commits(client: Any) -> None:
    runs: list[int] = []

    def both(session: ClientSession) -> None:
        runs.append(len(runs))
        client.d.c.find_one({"_id": 1}, session=session)
        if len(runs) == 1:
            client.d.c.update_one({"_id": 1}, {"$inc": {"a": 10}})  # outside: the first run conflicts
        client.d.c.update_one({"_id": 1}, {"$inc": {"a": 1}}, session=session)
        client.d.log.insert_one({"of": 1}, session=session)

    with client.start_session() as session, client.d.watch() as stream:
        session.with_transaction(both)
        events = [stream.next() for _ in range(3)]
    assert len(runs) == 2 and client.d.c.find_one() == {"_id": 1, "a": 11}
    assert [event["ns"]["coll"] for event in events] == ["c", "c", "log"]
    assert "txnNumber" not in events[0] and events[1]["clusterTime"] == events[2]["clusterTime"]


def test_a_write_outside_waits_and_is_woken_by_the_end_of_the_transaction(client: Any) -> None:
    with client.start_session() as session:
        session.start_transaction()
        client.d.c.update_one({"_id": 1}, {"$inc": {"a": 1}}, session=session)
        writers = [
            threading.Thread(target=client.d.c.update_one, args=({"_id": 1}, {"$inc": {"a": 10}})) for _ in range(3)
        ]
        for writer in writers:
            writer.start()
        with pytest.raises(OperationFailure, match="time limit") as failed:
            client.d.command("update", "c", updates=[{"q": {"_id": 1}, "u": {"$inc": {"a": 100}}}], maxTimeMS=20)
        assert failed.value.code == 50
        session.commit_transaction()
        for writer in writers:
            writer.join()
    assert client.d.c.find_one() == {"_id": 1, "a": 31}
