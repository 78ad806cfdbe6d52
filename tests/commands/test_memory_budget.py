"""The memory of a process: what counts, who is cut off when it is spent, and that it comes back."""

from __future__ import annotations

import contextlib
import logging
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Int64

from headrace import limits
from headrace.dispatch.request import ClientInfo
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.memory_budget import Memory
from headrace.testing.driven import DrivenServer

MEGABYTE = 1024 * 1024


def test_the_largest_lets_go_first_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    memory = Memory(100)
    small, large = memory.account("small"), memory.account("large")
    small.add(30)
    large.add(60)
    with caplog.at_level(logging.WARNING, "headrace.memory"):
        small.add(20)
    assert (memory.used, small.bytes, large.bytes, large.closed, memory.released) == (50, 50, 0, True, 1)
    assert [record.message for record in caplog.records] == [
        "memory: 110 bytes are in use and 100 allowed (--memoryLimit); most, 60 bytes, are of: large. It is cut off"
    ]
    with pytest.raises(CommandError) as raised:
        large.add(1)
    assert raised.value.code == 146
    large.add(-1)
    assert memory.used == 50


def test_a_limit_that_is_exceeded_again_and_again_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    memory = Memory(100)
    with caplog.at_level(logging.WARNING, "headrace.memory"):
        for number in range(50):
            with contextlib.suppress(CommandError):
                memory.account(f"number {number}").add(99)
    assert memory.released == 49 and len(caplog.records) == 1


def test_the_largest_that_grows_gets_the_error_at_once() -> None:
    memory = Memory(100)
    memory.account("other").add(50)
    account = memory.account("growing", error=lambda: CommandError(257, "no"))
    with pytest.raises(CommandError) as raised:
        account.add(51)
    assert (raised.value.code, memory.used) == (257, 50)


def test_one_that_can_give_back_some_stays_open_and_one_that_may_not_close_is_passed_over() -> None:
    memory = Memory(100)
    stuck = memory.account("stuck", may_close=False)
    stuck.add(70)
    shrinking = memory.account("shrinking")
    shrinking.when_needed(lambda: shrinking.add(-20))
    shrinking.add(40)
    assert (shrinking.bytes, shrinking.closed, stuck.bytes, memory.used) == (20, False, 70, 90)


def test_one_that_may_not_be_closed_is_never_refused_and_its_holder_may_close_it_while_it_grows() -> None:
    memory = Memory(100)
    channel, cursor = memory.account("a channel", may_close=False), memory.account("its only cursor")

    def close() -> None:
        cursor.close()
        channel.close()

    cursor.when_needed(close)
    cursor.add(60)
    for size in (30, 20, 10):  # the second one is too much
        channel.add(size)
    assert (channel.closed, memory.used) == (True, 0)


def test_where_nobody_can_give_anything_back_not_each_byte_asks_again(caplog: pytest.LogCaptureFixture) -> None:
    memory = Memory(100)
    asked: list[int] = []
    stuck = memory.account("earlier versions", lambda: asked.append(memory.used), may_close=False)
    with caplog.at_level(logging.WARNING, "headrace.memory"):
        for _ in range(3 * limits.COUNTED_STEP_BYTES // 256):
            stuck.add(256)
    assert (len(asked), len(caplog.records)) == (3, 1)
    stuck.add(-stuck.bytes)
    memory.account("small").add(60)
    large = memory.account("large")
    with pytest.raises(CommandError):
        large.add(70)
    assert memory.used == 60


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer(memory_bytes_max=10 * MEGABYTE) as server:
        server.run("t", {"insert": "c", "documents": [{"_id": n, "b": Binary(bytes(1000))} for n in range(1000)]})
        yield server


def begin(server: DrivenServer, number: int, command: dict[str, Any], first: bool) -> Any:
    fields = {"lsid": {"id": Binary(bytes([number] * 16), 4)}, "txnNumber": Int64(1), "autocommit": False}
    return server.run("t", {**command, **fields, **({"startTransaction": True} if first else {})})


def test_the_state_that_a_reader_holds_takes_no_memory(server: DrivenServer) -> None:
    assert begin(server, 1, {"find": "c", "limit": 1}, True)["ok"] == 1
    concern = {"level": "snapshot"}
    at = server.run("t", {"find": "c", "batchSize": 1, "readConcern": concern})["cursor"]["atClusterTime"]
    used = server.engine.memory.used
    for value in range(30):
        update = {"q": {"_id": 1}, "u": {"$set": {"b": Binary(bytes([value]) * MEGABYTE)}}}
        assert server.run("t", {"update": "c", "updates": [update]})["nModified"] == 1
    assert server.engine.memory.used < used + MEGABYTE // 10
    for reply in (
        begin(server, 1, {"find": "c", "filter": {"_id": 1}}, False),
        server.run("t", {"find": "c", "filter": {"_id": 1}, "readConcern": {**concern, "atClusterTime": at}}),
    ):
        assert reply["cursor"]["firstBatch"] == [{"_id": 1, "b": bytes(1000)}]


def test_the_transaction_with_most_writes_is_aborted(server: DrivenServer) -> None:
    small, large = Binary(bytes(MEGABYTE)), Binary(bytes(3 * MEGABYTE))
    assert begin(server, 1, {"insert": "c", "documents": [{"b": small}]}, True)["ok"] == 1
    assert begin(server, 2, {"insert": "c", "documents": [{"b": large}]}, True)["ok"] == 1
    failed = begin(server, 2, {"insert": "c", "documents": [{"b": large}]}, False)
    assert failed["writeErrors"][0]["code"] == 257
    assert begin(server, 2, {"find": "c"}, False)["code"] == 251
    assert begin(server, 1, {"insert": "c", "documents": [{"b": small}]}, False)["ok"] == 1
    assert server.engine.memory.used > 2 * MEGABYTE
    commit = {"lsid": {"id": Binary(bytes([1] * 16), 4)}, "txnNumber": Int64(1), "autocommit": False}
    assert server.run("admin", {"commitTransaction": 1, **commit})["ok"] == 1
    assert server.engine.memory.used == 0


def test_a_refused_transaction_leaves_nothing_in_memory(server: DrivenServer) -> None:
    def refused(number: int) -> None:
        large = {"insert": "c", "documents": [{"b": Binary(bytes(3 * MEGABYTE))}]}
        assert begin(server, number, large, True)["ok"] == 1
        assert begin(server, number, large, False)["writeErrors"][0]["code"] == 257

    refused(1)
    tracemalloc.start()
    try:
        for number in range(2, 8):
            refused(number)
        assert tracemalloc.get_traced_memory()[0] < MEGABYTE
    finally:
        tracemalloc.stop()


def test_a_client_with_too_many_cursors_loses_the_oldest(server: DrivenServer) -> None:
    ids = [server.run("t", {"find": "c", "batchSize": 2})["cursor"]["id"] for _ in range(300)]
    assert server.engine.memory.used <= 10 * MEGABYTE
    get_more = {"collection": "c", "batchSize": 1}
    assert server.run("t", {"getMore": ids[0], **get_more})["code"] == 43
    assert server.run("t", {"getMore": ids[-1], **get_more})["ok"] == 1
    server.run("t", {"killCursors": "c", "cursors": ids})
    assert server.engine.memory.used == 0


def test_scans_are_closed_before_the_stream_of_the_same_client(server: DrivenServer) -> None:
    stream = server.must("t", {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}})["cursor"]["id"]
    ids = [server.must("t", {"find": "c", "batchSize": 2})["cursor"]["id"] for _ in range(300)]
    assert server.run("t", {"getMore": ids[0], "collection": "c"})["code"] == 43
    assert isinstance(server.run("t", {"getMore": stream, "collection": "c"}), Wait)


def test_cursors_that_an_address_has_left_behind_are_not_those_of_its_next_client(server: DrivenServer) -> None:
    """A system gives a port again within minutes, and a cursor stays for ten."""
    first, second = (ClientInfo(number, "127.0.0.1:40000", ("127.0.0.1", 27017)) for number in (101, 102))
    scan, stream = {"find": "c", "batchSize": 2}, {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}
    server.client = second
    cursor = server.must("t", scan)["cursor"]["id"]
    server.client = first
    left = [server.must("t", scan)["cursor"]["id"] for _ in range(5)]
    server.engine.memory.bytes_max = server.engine.memory.used
    server.must("t", stream)
    assert server.run("t", {"getMore": left[0], "collection": "c"})["code"] == 43
    assert server.must("t", {"getMore": cursor, "collection": "c", "batchSize": 1})["ok"] == 1


def test_a_document_that_was_too_large_for_a_batch_counts_until_it_is_returned() -> None:
    with DrivenServer() as server:
        for number in range(3):
            server.must("t", {"insert": "c", "documents": [{"_id": number, "b": Binary(bytes(9 * 1024**2))}]})
        cursor = server.must("t", {"find": "c", "filter": {}})["cursor"]
        assert len(cursor["firstBatch"]) == 1
        assert 18 * 1024**2 < server.engine.memory.used < 30 * 1024**2
        more = {"getMore": Int64(cursor["id"]), "collection": "c"}
        server.must("t", more)
        assert server.engine.memory.used > 18 * 1024**2 or not server.must("t", more)["cursor"]["id"]
        server.run("t", {"killCursors": "c", "cursors": [cursor["id"]]})
        assert server.engine.memory.used == 0


def test_what_a_cursor_has_read_ahead_is_counted_as_documents_grow() -> None:
    with DrivenServer() as server:
        small = [{"_id": number} for number in range(200)]
        server.must("t", {"insert": "c", "documents": [*small, *({"b": Binary(bytes(50_000))} for _ in range(200))]})
        cursor = server.must("t", {"find": "c", "batchSize": 10})["cursor"]["id"]
        at_first = server.engine.memory.used
        server.must("t", {"getMore": Int64(cursor), "collection": "c", "batchSize": 250})
        assert server.engine.memory.used > at_first + limits.VIEW_CHUNK_BYTES // 2


def test_operations_are_refused_and_idle_sorted_cursors_closed(server: DrivenServer) -> None:
    sort = {"find": "c", "sort": {"b": 1}, "batchSize": 1}
    ids = [server.run("t", sort)["cursor"]["id"] for _ in range(20)]
    assert all(ids) and server.engine.memory.used <= 10 * MEGABYTE
    assert server.run("t", {"getMore": ids[0], "collection": "c"})["code"] == 43
    assert len(server.run("t", {"getMore": ids[-1], "collection": "c"})["cursor"]["nextBatch"]) > 100
    server.run("t", {"killCursors": "c", "cursors": ids})
    server.engine.memory.bytes_max = MEGABYTE // 2
    assert server.run("t", sort)["code"] == 146
    assert server.engine.memory.used == 0


def test_server_status_shows_the_budget(server: DrivenServer) -> None:
    section = server.run("admin", {"serverStatus": 1})["mem"]
    assert (section["limitBytes"], section["countedBytes"], section["cutOff"]) == (10 * MEGABYTE, 0, 0)
    assert section["largest"] == []
    server.run("t", {"find": "c", "batchSize": 2})
    section = server.run("admin", {"serverStatus": 1})["mem"]
    (largest,) = section["largest"]
    assert largest["holder"].startswith("open cursors of ") and largest["bytes"] == section["countedBytes"] > 0


def test_distinct_values_must_fit_into_a_document(server: DrivenServer) -> None:
    for number in range(17):
        document = {"_id": f"large {number}", "large": chr(65 + number) * MEGABYTE}
        assert server.run("t", {"insert": "d", "documents": [document]})["n"] == 1
    failed = server.run("t", {"distinct": "d", "key": "large"})
    assert (failed["code"], failed["errmsg"]) == (17217, "distinct too big, 16mb cap")
    assert len(server.run("t", {"distinct": "d", "key": "large", "query": {"_id": {"$lt": "large 2"}}})["values"]) == 9


def test_what_a_lookup_holds_counts(server: DrivenServer) -> None:
    lookup = {"$lookup": {"from": "c", "localField": "_id", "foreignField": "other", "as": "x"}}
    aggregate = {"aggregate": "c", "pipeline": [{"$limit": 1}, lookup], "cursor": {}}
    assert len(server.run("t", aggregate)["cursor"]["firstBatch"]) == 1
    assert server.engine.memory.used == 0
    server.engine.memory.bytes_max = MEGABYTE // 2
    assert server.run("t", aggregate)["code"] == 146
    assert server.engine.memory.used == 0


def test_events_that_streams_have_not_read_count_and_are_dropped_for_the_oplog(server: DrivenServer) -> None:
    def opened(label: int) -> int:
        stages = [{"$changeStream": {}}, {"$match": {"documentKey._id": {"$ne": label}}}]
        return int(server.must("t", {"aggregate": "c", "pipeline": stages, "cursor": {"batchSize": 0}})["cursor"]["id"])

    cursors = [opened(label) for label in range(3)]
    get_more = {"collection": "c", "batchSize": 1, "maxTimeMS": 1}
    for number in range(3):
        document = {"_id": f"n{number}", "b": Binary(bytes(MEGABYTE))}
        server.must("t", {"insert": "c", "documents": [document]})
        for cursor in cursors[:2]:
            assert len(server.must("t", {"getMore": cursor, **get_more})["cursor"]["nextBatch"]) == 1
    assert 7 * MEGABYTE < server.engine.memory.used <= 10 * MEGABYTE
    for number in range(3, 8):
        server.must("t", {"insert": "c", "documents": [{"_id": f"n{number}", "b": Binary(bytes(MEGABYTE))}]})
        server.must("t", {"getMore": cursors[0], **get_more})
    assert server.engine.memory.used <= 10 * MEGABYTE and server.engine.memory.released > 0
    for cursor, done in zip(cursors, (8, 3, 0)):
        rest = [
            server.must("t", {"getMore": cursor, **get_more})["cursor"]["nextBatch"][0]["documentKey"]["_id"]
            for _ in range(8 - done)
        ]
        assert rest == [f"n{number}" for number in range(done, 8)]
    server.run("t", {"killCursors": "c", "cursors": cursors})
    assert server.engine.memory.used == 0


def test_transactions_that_only_read_count_and_few_that_ended_are_known(
    server: DrivenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 11):
        assert begin(server, number, {"find": "c", "limit": 1}, True)["ok"] == 1
    assert server.engine.memory.used >= 10 * limits.OPEN_TRANSACTION_BYTES
    server.engine.end_sessions(None)
    assert server.engine.memory.used == 0
    monkeypatch.setattr(limits, "ENDED_TRANSACTION_COUNT_MAX", 5)
    for number in range(11, 31):
        assert begin(server, number, {"insert": "c", "documents": [{"n": number}]}, True)["ok"] == 1
        commit = {"lsid": {"id": Binary(bytes([number] * 16), 4)}, "txnNumber": Int64(1), "autocommit": False}
        assert server.run("admin", {"commitTransaction": 1, **commit})["ok"] == 1
    assert len(server.store.transactions.latest) <= 10
    again = {"lsid": {"id": Binary(bytes([11] * 16), 4)}, "txnNumber": Int64(1), "autocommit": False}
    assert server.run("admin", {"commitTransaction": 1, **again})["ok"] == 1


def test_a_session_too_many_is_refused(server: DrivenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def insert(session: int, number: int) -> Any:
        fields = {"lsid": {"id": Binary(bytes([session] * 16), 4)}, "txnNumber": Int64(number)}
        return server.run("t", {"insert": "d", "documents": [{}], **fields})

    monkeypatch.setattr(limits, "SESSION_COUNT_MAX", 3)
    assert [insert(session, 1)["ok"] for session in range(3)] == [1, 1, 1]
    refused = insert(3, 1)
    assert (refused["code"], refused["codeName"]) == (261, "TooManyLogicalSessions")
    assert insert(2, 2)["ok"] == 1
