"""Writes, streams and `validate` that let a reader process read for them: the results are those of the server alone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pymongo
import pytest
from bson import Binary, Int64
from pymongo.errors import ExecutionTimeout, OperationFailure, WriteError

import headrace
from headrace import limits
from tests.server.raw import RawClient
from tests.server.readers.reading import moved_count, on_loop, only_reader, readers_of, serving, start_readers
from tests.waiting import until

pytestmark = pytest.mark.process
COUNT = 3000
RARE = {"a": 7, "s": {"$ne": "y"}}
"""Matches each hundredth document, without an index."""
Client = pymongo.MongoClient[Any]


@pytest.fixture(scope="module")
def shared() -> Iterator[headrace.Server]:
    with serving() as server:
        yield server


@pytest.fixture
def server(shared: headrace.Server) -> Iterator[headrace.Server]:
    start_readers(shared, 1)
    yield shared
    shared._running.scheduler.turns.seconds = 0.0


@pytest.fixture
def client(server: headrace.Server) -> Iterator[Client]:
    with pymongo.MongoClient(server.uri) as client:
        client.drop_database("t")
        client.t.c.insert_many([{"_id": number, "a": number % 100, "s": "x"} for number in range(COUNT)])
        yield client


def changed(client: Client) -> list[int]:
    return [item["_id"] for item in client.t.c.find({"b": 1}, {"_id": 1})]


ALL = list(range(7, COUNT, 100))


@contextmanager
def held(server: headrace.Server, run: Callable[[], object]) -> Iterator[int]:
    """During the `with` a reader has been asked by what `run` sends from another thread, and has not answered; yields
    the number of its process."""
    reader = only_reader(server)
    thread = threading.Thread(target=run)
    os.kill(reader.process.pid, signal.SIGSTOP)
    try:
        thread.start()
        until(lambda: bool(reader.calls))
        yield reader.process.pid
    finally:
        os.kill(reader.process.pid, signal.SIGCONT)
        thread.join()


def test_updates_and_deletes_find_their_documents_in_a_reader(server: headrace.Server, client: Client) -> None:
    collection = client.t.c
    for number, filter_ in enumerate((RARE, {"$expr": {"$eq": ["$a", 7]}}, {"a": {"$mod": [100, 7]}})):
        before = moved_count(server)
        with client.t.watch() as stream:
            result = collection.update_many(filter_, {"$set": {"b": 1, "n": number}})
            assert (result.matched_count, result.modified_count) == (len(ALL), len(ALL))
            assert [stream.next()["documentKey"]["_id"] for _ in ALL] == ALL
        assert moved_count(server) > before
        assert changed(client) == ALL
    before = moved_count(server)
    assert collection.find_one_and_update({"a": 99}, {"$set": {"b": 2}})["_id"] == 99
    assert collection.find_one_and_delete({"a": 99, "b": 2}, sort=[("s", 1)])["_id"] == 99
    writes = [pymongo.UpdateMany(RARE, {"$inc": {"n": 1}}), pymongo.DeleteMany({"a": 8})]
    answer = collection.bulk_write(writes)
    assert (answer.modified_count, answer.deleted_count) == (len(ALL), COUNT // 100)
    assert moved_count(server) >= before + 4
    assert collection.delete_many(RARE).deleted_count == len(ALL)
    assert collection.count_documents({}) == COUNT - 1 - COUNT // 100 - len(ALL)


def test_a_filter_has_its_variables_and_its_collation_in_a_reader(server: headrace.Server, client: Client) -> None:
    collection = client.t.c
    collection.update_many({"_id": {"$in": ALL}}, {"$set": {"s": "X"}})
    before = moved_count(server)
    french = {"locale": "fr", "strength": 1}
    assert collection.update_many({"s": "X", "a": 7}, {"$set": {"b": 1}}, collation=french).modified_count == len(ALL)
    condition = {"$and": [{"$eq": ["$a", "$$wanted"]}, {"$lt": [{"$toDate": {"$toLong": 0}}, "$$NOW"]}]}
    command = {"update": "c", "updates": [{"q": {"$expr": condition}, "u": {"$set": {"b": 2}}, "multi": True}]}
    answer = client.t.command({**command, "let": {"wanted": {"$add": [3, 5]}}})
    assert (answer["n"], answer["nModified"]) == (COUNT // 100, COUNT // 100)
    assert moved_count(server) > before + 1


def test_a_document_that_was_changed_after_the_reader_has_found_it_must_match_again(
    server: headrace.Server, client: Client
) -> None:
    """The reader's answer is held up, where the server sends it on."""
    collection, results = client.t.c, []
    reader, answers = only_reader(server), []
    answered = reader._answered
    reader._answered = lambda *answer: answers.append(answer)  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: results.append(collection.update_many(RARE, {"$set": {"b": 1}})))
    thread.start()
    until(lambda: bool(answers))
    with RawClient(server.address) as other:
        statements: list[dict[str, Any]] = [
            {"q": {"_id": 107}, "u": {"$set": {"a": 8}}}, {"q": {"_id": 207}, "u": {"$set": {"s": "z"}}},
        ]  # fmt: skip
        other.ask({"update": "c", "updates": statements})
        other.ask({"delete": "c", "deletes": [{"q": {"_id": number}, "limit": 1} for number in (307, 407)]})
        other.ask({"insert": "c", "documents": [{"_id": 407, "a": 7, "s": "again"}]})
    del reader._answered
    on_loop(server, lambda: answered(*answers[0]))
    thread.join()
    (result,) = results
    assert changed(client) == [number for number in ALL if number not in (107, 307, 407)] + [407]
    assert result.matched_count == result.modified_count == len(ALL) - 2
    assert collection.find_one({"_id": 207}) == {"_id": 207, "a": 7, "s": "z", "b": 1}


def test_an_update_outlives_its_reader(server: headrace.Server, client: Client) -> None:
    with held(server, lambda: client.t.c.update_many(RARE, {"$inc": {"b": 1}})) as process:
        os.kill(process, signal.SIGKILL)
    assert changed(client) == ALL


def test_an_update_that_has_lost_two_readers_finds_its_documents_itself(
    server: headrace.Server, client: Client
) -> None:
    reader = only_reader(server)
    run = type(reader).run

    def run_and_die(reader: Any, call: Any, done: Any) -> None:
        run(reader, call, done)
        reader.process.kill()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(reader), "run", run_and_die)
        assert client.t.c.update_many(RARE, {"$inc": {"b": 1}}).modified_count == len(ALL)
    assert changed(client) == ALL


def test_an_error_in_the_filter_is_that_of_the_server(server: headrace.Server, client: Client) -> None:
    client.t.c.update_one({"_id": 2500}, {"$set": {"s": 0}})
    failing = {"a": 7, "$expr": {"$ne": [{"$divide": [1, {"$cond": [{"$eq": ["$s", 0]}, 0, 1]}]}, 5]}}
    client.t.c.update_one({"_id": 2500}, {"$set": {"a": 7}})
    before = moved_count(server)
    with pytest.raises(WriteError):
        client.t.c.update_many(failing, {"$set": {"b": 1}})
    assert moved_count(server) > before
    assert changed(client) == [number for number in ALL if number < 2500]


def test_a_write_that_waits_for_its_reader_can_be_ended(server: headrace.Server, client: Client) -> None:
    errors: list[BaseException] = []

    def update(**options: Any) -> None:
        try:
            client.t.command(
                {"update": "c", "updates": [{"q": RARE, "u": {"$set": {"b": 1}}, "multi": True}], **options}
            )
        except OperationFailure as error:
            errors.append(error)

    with held(server, lambda: update(maxTimeMS=4000)):
        until(lambda: bool(errors))
    assert type(errors.pop()) is ExecutionTimeout
    with held(server, update):
        (operation,) = client.admin.aggregate([{"$currentOp": {}}, {"$match": {"command.update": "c"}}])
        client.admin.command("killOp", op=operation["opid"])
        until(lambda: bool(errors))
    assert errors.pop().code == 11601  # type: ignore[attr-defined]
    until(lambda: not only_reader(server).calls)
    with RawClient(server.address) as raw:
        raw.send({"update": "c", "updates": [{"q": RARE, "u": {"$set": {"b": 1}}, "multi": True}]})
        until(lambda: bool(only_reader(server).calls) or len(changed(client)) == len(ALL))
    until(lambda: not only_reader(server).calls)


def test_a_retryable_write_is_done_once(server: headrace.Server, client: Client) -> None:
    with RawClient(server.address) as raw:
        command = {
            "update": "c", "updates": [{"q": RARE, "u": {"$inc": {"b": 1}}}],
            "lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(1),
        }  # fmt: skip
        assert [raw.ask(command)["nModified"] for _ in range(2)] == [1, 1]
    assert len(changed(client)) == 1


def test_a_server_ends_while_a_write_waits_for_its_reader() -> None:
    with serving() as server, RawClient(server.address) as raw:
        raw.ask({"insert": "c", "documents": [{"a": number % 100} for number in range(COUNT)]})
        os.kill(only_reader(server).process.pid, signal.SIGSTOP)
        raw.send({"delete": "c", "deletes": [{"q": {"a": 7}, "limit": 0}]})
        until(lambda: bool(only_reader(server).calls))


GROUP = {"$group": {"_id": "$a", "n": {"$sum": 1}}}


@pytest.mark.parametrize("stage", [{"$out": "made"}, {"$merge": "made"}])
def test_the_pipeline_of_out_and_merge_runs_in_a_reader(
    server: headrace.Server, client: Client, stage: dict[str, Any]
) -> None:
    before = moved_count(server)
    list(client.t.c.aggregate([GROUP, stage], writeConcern={"w": 1}))
    assert moved_count(server) == before + 1
    assert sorted(client.t.made.find(), key=lambda item: item["_id"]) == [{"_id": n, "n": 30} for n in range(100)]
    client.t.create_collection("v", viewOn="c", pipeline=[{"$match": {"a": {"$lt": 50}}}])
    before = moved_count(server)
    list(client.t.v.aggregate([{"$set": {"t": "$$wanted"}}, stage], let={"wanted": 1}))
    assert moved_count(server) >= before + 2  # in more than one batch
    assert client.t.made.count_documents({"t": 1}) == COUNT // 2
    assert not readers_of(server).core.engine.cursors._open


def test_a_pipeline_that_fails_writes_nothing(server: headrace.Server, client: Client) -> None:
    for stage in ({"$out": "made"}, {"$merge": "made"}):
        with pytest.raises(OperationFailure) as failed:
            client.t.c.aggregate([{"$project": {"x": {"$divide": [1, {"$subtract": [2999, "$_id"]}]}}}, stage])
        assert failed.value.code == 16608
        assert client.t.made.estimated_document_count() == 0


def test_an_output_outlives_its_reader(server: headrace.Server, client: Client) -> None:
    with held(server, lambda: list(client.t.c.aggregate([{"$merge": "made"}]))) as process:
        os.kill(process, signal.SIGKILL)
    assert client.t.made.count_documents({}) == COUNT
    reader = only_reader(server)
    answered = reader._answered

    def answer_and_die(message: dict[str, Any], reply: bytes) -> None:
        answered(message, reply)
        reader.process.kill()

    reader._answered = answer_and_die  # type: ignore[method-assign]
    list(client.t.c.aggregate([{"$set": {"b": 1}}, {"$out": "made"}]))  # its second batch is lost
    assert client.t.made.count_documents({"b": 1}) == COUNT


def test_the_backlog_of_a_stream_is_read_in_a_reader(
    server: headrace.Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LAG_MS", -1.0)
    with client.t.watched.watch() as stream:
        token = stream.resume_token
    client.t.watched.insert_many([{"_id": number} for number in range(500)])
    with client.start_session() as session, session.start_transaction():
        client.t.watched.insert_many([{"_id": 500 + number} for number in range(200)], session=session)
    client.t.watched.update_many({}, {"$set": {"a": 1}})
    seen: list[tuple[str, int]] = []
    before = moved_count(server)
    pipeline = [{"$match": {"documentKey._id": {"$ne": 3}}}]
    with client.t.watched.watch(pipeline, resume_after=token, batch_size=60, full_document="updateLookup") as stream:
        while len(seen) < 1398:
            event = stream.next()
            assert event["operationType"] == "insert" or event["fullDocument"]["a"] == 1
            seen.append((event["operationType"], event["documentKey"]["_id"]))
        assert moved_count(server) > before + 10
        numbers = [number for number in range(700) if number != 3]
        assert seen == [*(("insert", number) for number in numbers), *(("update", number) for number in numbers)]
        client.t.watched.delete_one({"_id": 5})
        assert stream.next()["operationType"] == "delete"
        moved = moved_count(server)
        client.t.watched.delete_one({"_id": 6})
        assert stream.next()["documentKey"] == {"_id": 6}
        assert moved_count(server) == moved  # it has come home
        client.t.drop_collection("watched")
        assert [event["operationType"] for event in stream] == ["drop", "invalidate"]


def test_a_stream_outlives_its_reader(server: headrace.Server, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LAG_MS", -1.0)
    with client.t.watched.watch() as stream:
        token = stream.resume_token
    client.t.watched.insert_many([{"_id": number} for number in range(500)])
    seen: list[int] = []

    def read() -> None:
        with client.t.watched.watch(resume_after=token, batch_size=50) as stream:
            while len(seen) < 500:
                seen.append(stream.next()["_id"] and len(seen))

    for _ in range(2):
        seen.clear()
        with held(server, read) as process:
            os.kill(process, signal.SIGKILL)
        assert seen == list(range(500))
        start_readers(server, 1)


def test_a_stream_that_a_reader_reads_can_be_killed_and_is_read_by_one_client(
    server: headrace.Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LAG_MS", -1.0)
    with client.t.watched.watch() as stream:
        token = stream.resume_token
    client.t.watched.insert_many([{"_id": number} for number in range(500)])
    with RawClient(server.address) as raw, RawClient(server.address) as other:
        opening = {"aggregate": "watched", "pipeline": [{"$changeStream": {"resumeAfter": token}}], "cursor": {}}
        cursor_id = raw.ask({**opening, "cursor": {"batchSize": 10}})["cursor"]["id"]
        more = {"getMore": Int64(cursor_id), "collection": "watched", "batchSize": 10}
        os.kill(only_reader(server).process.pid, signal.SIGSTOP)
        raw.send(more)
        until(lambda: bool(only_reader(server).calls))
        assert other.ask(more)["code"] == 143
        assert other.ask({"killCursors": "watched", "cursors": [Int64(cursor_id)]})["cursorsKilled"] == [cursor_id]
        os.kill(only_reader(server).process.pid, signal.SIGCONT)
        assert raw.receive()[1]["code"] in (43, 237)


def test_validate_in_a_reader_compares_the_count_of_the_server(server: headrace.Server, client: Client) -> None:
    client.t.large.insert_many([{"_id": number} for number in range(10_001)])
    assert client.t.large.estimated_document_count() == 10_001
    before = moved_count(server)
    answer = client.t.command({"validate": "large"})
    assert (answer["valid"], answer["nrecords"], answer["warnings"]) == (True, 10_001, [])
    assert moved_count(server) == before + 1

    def miscount() -> None:
        store = server._running.store
        number = store.catalog.collections["t.large"].number
        counts = store.state.counts
        store.state = store.state._replace(counts={**counts, number: counts[number]._replace(documents=10_007)})

    on_loop(server, miscount)
    (warning,) = client.t.command({"validate": "large"})["warnings"]
    assert "counted as 10007 documents and has 10001" in warning
    assert client.t.large.estimated_document_count() == 10_001
    assert moved_count(server) == before + 2
