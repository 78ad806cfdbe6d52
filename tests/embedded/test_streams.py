"""Change streams as objects of a program: waiting, filtering, queues, callbacks, ends and resumes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient

import headrace
from headrace.testing.clock import FakeClock
from tests.waiting import until


@pytest.fixture
def store() -> Iterator[Any]:
    with headrace.open() as opened:
        yield opened


def waiting(store: Any) -> int:
    """How many threads are parked."""
    return len(store._local.parked.waiting_requests())


def until_parked(store: Any, count: int = 1) -> None:
    """Return when so many threads wait for a commit."""
    until(lambda: waiting(store) >= count)


def read(stream: Any) -> list[Any]:
    """The events that are there."""
    return list(iter(stream.try_next, None))


def test_a_stream_is_pulled_without_waiting(store: Any) -> None:
    with store.shop.orders.watch() as stream:
        assert stream.try_next() is None
        store.shop.orders.insert_one({"_id": 1, "a": 1})
        store.shop.other.insert_one({"_id": 1})
        event = stream.try_next()
        assert (event.operation_type, event.full_document, event.document_key) == (
            "insert",
            {"_id": 1, "a": 1},
            {"_id": 1},
        )
        assert (event.database, event.collection, event.document_id) == ("shop", "orders", 1)
        assert event.resume_token == event.raw["_id"] and event["operationType"] == "insert"
        assert stream.try_next() is None and stream.has_read_all


def test_next_waits_for_a_commit_of_another_thread(store: Any) -> None:
    stream, came = store.shop.orders.watch(), []
    thread = threading.Thread(target=lambda: came.append(stream.next(timeout=60)))
    thread.start()
    until_parked(store)
    store.shop.orders.insert_one({"_id": 1})
    thread.join()
    assert came[0].document_id == 1


def test_next_raises_when_its_time_is_up(store: Any) -> None:
    stream = store.shop.orders.watch()
    with pytest.raises(headrace.Timeout):
        stream.next(timeout=0)
    with pytest.raises(TimeoutError):
        stream.next(timeout=0.01)
    store.shop.orders.insert_one({"_id": 1})
    assert stream.next(timeout=0).document_id == 1


@pytest.mark.parametrize("scope", ["collection", "database", "deployment"])
def test_what_a_stream_watches(store: Any, scope: str) -> None:
    shop = store.shop
    stream = {"collection": shop.orders, "database": shop, "deployment": store}[scope].watch()
    shop.orders.insert_one({"_id": 1})
    shop.other.insert_one({"_id": 2})
    store.else_.orders.insert_one({"_id": 3})
    expected = {"collection": [1], "database": [1, 2], "deployment": [1, 2, 3]}[scope]
    assert [event.document_id for event in read(stream) if event.operation_type == "insert"] == expected


def test_events_are_chosen_by_operation_filter_and_pipeline(store: Any) -> None:
    orders = store.shop.orders
    streams = (
        orders.watch(operation_types="delete"),
        orders.watch(filter={"fullDocument.status": "paid"}),
        orders.watch([{"$project": {"operationType": 1}}], operation_types=["insert", "delete"]),
    )
    orders.insert_one({"_id": 1, "status": "new"})
    orders.replace_one({"_id": 1}, {"status": "paid"})
    orders.delete_one({"_id": 1})
    assert [[event.operation_type for event in read(stream)] for stream in streams] == [
        ["delete"], ["replace"], ["insert", "delete"],
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no such operation: nope"):
        orders.watch(operation_types=["nope"])


@pytest.mark.parametrize(
    ("update", "touches"),
    [
        ({"$set": {"a.b": 2}}, True), ({"$set": {"a": {"b": 2}}}, True), ({"$set": {"a.b.c": 2}}, True),
        ({"$unset": {"a": 1}}, True), ({"$set": {"a.x": 2}}, False), ({"$set": {"ab": 2}}, False),
        ({"$set": {"z": 2}}, False), ([{"$set": {"list": [1]}}], True),
    ],
)  # fmt: skip
def test_updates_that_touch_none_of_the_fields_are_left_out(store: Any, update: Any, touches: bool) -> None:
    orders = store.shop.orders
    orders.insert_one({"_id": 1, "a": {"b": {"c": 1}, "x": 1}, "list": [1, 2, 3]})
    stream = orders.watch(fields=["a.b", "list"])
    orders.update_one({"_id": 1}, update)
    orders.delete_one({"_id": 1})
    assert [event.operation_type for event in read(stream)] == (["update"] if touches else []) + ["delete"]


def test_an_update_is_described(store: Any) -> None:
    orders = store.shop.orders
    orders.insert_one({"_id": 1, "a": 1, "b": 1, "c": list(range(100))})
    store.shop.command("collMod", "orders", changeStreamPreAndPostImages={"enabled": True})
    stream = orders.watch(full_document="updateLookup", full_document_before_change="whenAvailable")
    orders.update_one({"_id": 1}, [{"$set": {"a": 2, "c": list(range(50))}}, {"$unset": "b"}])
    event = stream.next()
    assert (dict(event.updated_fields), event.removed_fields, event.truncated_arrays) == (
        {"a": 2},
        ["b"],
        [{"field": "c", "newSize": 50}],
    )
    assert (len(event.full_document["c"]), event.full_document_before_change["b"], event.transaction) == (50, 1, None)


def test_an_event_is_used_as_the_document_that_drivers_return(store: Any) -> None:
    with store.shop.orders.watch() as stream:
        store.shop.orders.insert_one({"_id": 1})
        event = stream.try_next()
    assert dict(event) == event.raw == event and event in [event.raw]
    assert list(event.items()) == list(event.raw.items()) and {**event} == event.raw
    assert "documentKey" in event and event.get("to") is None and event.get("to", 5) == 5
    store.shop.events.insert_one(dict(event))
    assert store.shop.events.find_one({"operationType": "insert"})["fullDocument"] == {"_id": 1}


def test_close_ends_an_iteration_that_waits(store: Any) -> None:
    stream, seen = store.shop.orders.watch(), []
    thread = threading.Thread(target=lambda: seen.extend(stream))
    store.shop.orders.insert_one({"_id": 1})
    thread.start()
    until_parked(store)
    stream.close()
    thread.join()
    stream.close()
    assert [event.document_id for event in seen] == [1]
    with pytest.raises(headrace.Closed):
        stream.next()
    with pytest.raises(headrace.Closed):
        stream.try_next()


def test_closing_the_store_ends_what_waits() -> None:
    store = headrace.open()
    stream, failures = store.shop.orders.watch(), []

    def wait() -> None:
        with pytest.raises(headrace.Closed) as failure:
            stream.next()
        failures.append(failure.value)

    thread = threading.Thread(target=wait)
    thread.start()
    until_parked(store)
    store.close()
    thread.join()
    assert failures and list(stream) == []


def test_an_invalidated_stream_ends_and_can_be_started_behind(store: Any) -> None:
    orders = store.shop.orders
    orders.insert_one({"_id": 1})
    stream = orders.watch()
    orders.drop()
    assert [event.operation_type for event in stream] == ["drop", "invalidate"]
    with pytest.raises(headrace.StreamInvalidated):
        stream.next()
    orders.insert_one({"_id": 2})
    assert orders.watch(start_after=stream.resume_token).next().document_id == 2


def test_a_stream_resumes_behind_its_token(store: Any) -> None:
    orders = store.shop.orders
    stream = orders.watch()
    orders.insert_many([{"_id": number} for number in range(5)])
    tokens = [stream.next().resume_token for _ in range(5)]
    assert stream.resume_token == tokens[-1]
    resumed = orders.watch(resume_after=tokens[2])
    assert [event.document_id for event in read(resumed)] == [3, 4]


def test_a_stream_of_a_session(store: Any) -> None:
    orders = store.shop.orders
    with store.start_session() as session:
        stream = orders.watch(session=session)
        for number in range(3):
            orders.insert_one({"_id": number}, session=session)
            assert stream.next(timeout=60).document_id == number
        store._local.engine.cursors.remove_all()
        orders.insert_one({"_id": "last"})
        assert stream.next(timeout=60).document_id == "last"


def test_a_stream_whose_cursor_is_gone_goes_on_by_itself(store: Any) -> None:
    orders = store.shop.orders
    stream = orders.watch()
    orders.insert_one({"_id": 1})
    assert stream.next().document_id == 1
    store._local.engine.cursors.remove_all()
    orders.insert_one({"_id": 2})
    assert stream.next().document_id == 2


def test_history_that_is_gone_is_an_error_with_a_class() -> None:
    clock = FakeClock()
    with headrace.open(clock=clock, oplog_entries_max=5) as store:
        orders = store.shop.orders
        stream = orders.watch()
        token = stream.resume_token
        for number in range(50):
            orders.insert_one({"_id": number})
        store.prune()  # or the store's own thread just has
        with pytest.raises(headrace.HistoryLost):
            orders.watch(resume_after=token)
        stream._local.engine.cursors.remove_all()
        with pytest.raises(headrace.HistoryLost):
            stream.next()


def test_a_bounded_queue_holds_back_its_reader_and_no_writer(store: Any) -> None:
    """A slow consumer with 100,000 events loses none, while the writer never waits for it."""
    orders, count = store.shop.orders, 100_000
    stream = orders.watch()
    queue = stream.events(maxsize=100)
    for start in range(0, count, 10_000):
        orders.insert_many([{"_id": number} for number in range(start, start + 10_000)])
    assert queue.qsize() <= 100
    assert all(queue.get().document_id == number for number in range(count))
    stream.close()
    with pytest.raises(headrace.Closed):
        queue.get()
    stream.join(timeout=60)


@pytest.mark.parametrize("is_full", [False, True])
def test_a_queue_that_is_dropped_closes_its_stream_and_ends_its_thread(store: Any, is_full: bool) -> None:
    orders = store.shop.orders
    stream = orders.watch()
    queue = stream.events(maxsize=1)
    (thread,) = stream._threads
    orders.insert_many([{}, {}, {}] if is_full else [{}])
    for _ in queue:
        break
    if not is_full:
        until_parked(store)
    del queue
    store._local.close_forgotten()  # what a thread does each second
    thread.join(60)
    assert not thread.is_alive() and not stream.alive
    assert len(store._local.engine.cursors) == 0
    with pytest.raises(headrace.Closed):
        stream.next()


def test_functions_are_called_on_a_thread_of_the_streams(store: Any) -> None:
    orders = store.shop.orders
    stream, seen, done = orders.watch(), [], threading.Event()

    @stream.on("insert")  # type: ignore[untyped-decorator]
    def inserted(event: Any) -> None:
        seen.append((event.document_id, threading.current_thread().name))

    stream.on(["delete"], lambda event: done.set())
    orders.insert_many([{"_id": 1}, {"_id": 2}])
    orders.delete_one({"_id": 1})
    assert done.wait(60)
    stream.close()
    stream.join(timeout=60)
    assert seen == [(1, "headrace-stream"), (2, "headrace-stream")]


def test_a_function_that_raises_is_logged_and_the_next_event_follows(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    stream, seen = store.shop.orders.watch(), []

    def fail_once(event: Any) -> None:
        seen.append(event.document_id)
        if event.document_id == 1:
            raise ZeroDivisionError("a canary")
        if event.document_id == 3:
            stream.close()

    stream.on(None, fail_once)
    stream.on("insert", lambda event: seen.append(-event.document_id))
    store.shop.orders.insert_many([{"_id": number} for number in (1, 2, 3)])
    stream.join(timeout=60)
    assert seen == [1, -1, 2, -2, 3, -3] and not stream.alive
    (record,) = [record for record in caplog.records if record.name == "headrace.embedded"]
    assert "fail_once failed on a change event" in record.getMessage() and record.levelname == "ERROR"
    assert record.exc_info is not None and "a canary" in str(record.exc_info[1])


def test_a_function_that_ends_its_thread_ends_the_stream(store: Any) -> None:
    stream = store.shop.orders.watch()
    stream.on(None, lambda event: sys.exit(3))
    store.shop.orders.insert_one({"_id": 1})
    with pytest.raises(SystemExit):
        stream.join(timeout=60)
    assert not stream.alive
    with pytest.raises(headrace.Closed):
        stream.on(None, print)


def test_tokens_are_the_same_embedded_and_by_wire_and_each_resumes_the_others(store: Any) -> None:
    orders = store.shop.orders
    with store.serve() as served, MongoClient[Any](served.uri) as client:
        embedded = orders.watch()
        with client.shop.orders.watch() as wire:
            orders.insert_many([{"_id": number} for number in range(4)])
            events = [embedded.next() for _ in range(4)]
            assert [wire.next() for _ in range(4)] == [event.raw for event in events]
        with client.shop.orders.watch(resume_after=events[1].resume_token) as wire:
            assert [wire.next()["_id"] for _ in range(2)] == [event.resume_token for event in events[2:]]
            resumed = orders.watch(resume_after=wire.resume_token)
        client.shop.orders.insert_one({"_id": "wire"})
        assert resumed.next(timeout=60).document_id == "wire"
        assert embedded.next(timeout=60).document_id == "wire"
