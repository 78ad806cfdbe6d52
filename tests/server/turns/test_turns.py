"""A command that runs for long gives others their turn, and can be ended at any of its own."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cramjam
import pytest
from bson import Binary, Int64

import headrace
from headrace.dispatch import reply
from headrace.dispatch.context import CommandContext
from headrace.errors import Interrupted
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.turns import Turns
from headrace.values.bson import decode
from tests.waiting import until

from ..raw import RawClient, message

ENDLESS: dict[str, Any] = {
    "aggregate": 1,
    "pipeline": [
        {"$documents": [{"a": list(range(1000)), "b": list(range(1000)), "c": list(range(1000))}]},
        {"$unwind": "$a"}, {"$unwind": "$b"}, {"$unwind": "$c"}, {"$match": {"a": -1}},
    ],
    "cursor": {},
}  # fmt: skip
"""A pipeline that looks at a thousand million documents and finds none."""


@pytest.fixture
def server() -> Iterator[headrace.Server]:
    with headrace.Server() as running:
        yield running


def running(client: RawClient, name: str) -> list[dict[str, Any]]:
    """The operations in progress that are commands of a name."""
    shown = client.ask({"currentOp": 1}, "admin")["inprog"]
    return [operation for operation in shown if name in operation.get("command", {})]


LONG_FIND: dict[str, Any] = {"find": "c", "filter": {"a": [[[0] * 10] * 10] * 2000}, "$db": "t"}


def ask_compressed(client: RawClient, body: dict[str, Any]) -> dict[str, Any]:
    """Send a command that snappy has compressed; return the reply."""
    plain = message(body)[16:]
    packed = bytes(cramjam.snappy.compress_raw(plain))
    client.socket.sendall(struct.pack("<iiiiiiB", 25 + len(packed), 1, 0, 2012, 2013, len(plain), 1) + packed)
    (length,) = struct.unpack("<i", client._exactly(4))
    return decode(bytes(cramjam.snappy.decompress_raw(client._exactly(length - 4)[21:]))[5:])


def test_the_command_of_a_long_message_begins_with_a_short_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    with headrace.Server() as server, RawClient(server.address) as client:
        scheduler, names = server._running.scheduler, list[str]()
        run_shortly = scheduler.run_shortly

        def named(function: Any, *args: Any) -> Any:
            names.append(function.__name__)
            return run_shortly(function, *args)

        monkeypatch.setattr(scheduler, "run_shortly", named)
        assert client.ask({"find": "c", "filter": {"a": 1}})["ok"] == 1.0
        assert "run" not in names
        scheduler.turns.seconds = 0.0
        assert ask_compressed(client, LONG_FIND)["ok"] == 1.0
        assert "run" in names


def test_others_are_served_while_a_command_runs(server: headrace.Server) -> None:
    with RawClient(server.address) as long, RawClient(server.address) as other:
        stream = other.watch("c")
        long.send(ENDLESS, "admin")
        until(lambda: running(other, "aggregate"))
        for key in range(20):
            assert other.ask({"ping": 1})["ok"] == 1.0
            assert other.ask({"insert": "c", "documents": [{"_id": key}]})["n"] == 1
            event = other.ask({"getMore": stream, "collection": "c"})["cursor"]["nextBatch"][0]
            assert event["documentKey"] == {"_id": key}
        assert running(other, "aggregate")


def test_a_write_that_waits_runs_before_the_next_turn(server: headrace.Server) -> None:
    core, happened, done = server._running, list[str](), threading.Event()

    def write(count: int) -> None:
        core.writer.add_job(lambda txn: happened.append("write"))
        if count > 1:
            core.loop.call_soon(write, count - 1)

    def turn() -> None:
        happened.append("turn")
        done.set()

    def begin() -> None:
        core.writer.call_after_writes(turn)
        write(20)

    core.loop.call_soon_threadsafe(begin)
    assert done.wait(60)
    assert happened.index("turn") in (1, 2)  # behind the first write, and not behind all of them


def test_a_running_command_is_killed_by_its_number(server: headrace.Server) -> None:
    with RawClient(server.address) as long, RawClient(server.address) as other:
        long.send(ENDLESS, "admin")
        operations = until(lambda: running(other, "aggregate"))
        other.ask({"killOp": 1, "op": operations[0]["opid"]}, "admin")
        assert long.receive()[1]["code"] == 11601
        assert long.ask({"ping": 1})["ok"] == 1.0


_NESTED_MAPS = {"$map": {"input": {"$range": [0, 3000]}, "as": "i", "in": {"$map": {
    "input": {"$range": [0, 3000]}, "as": "j", "in": {"$map": {
        "input": {"$range": [0, 3000]}, "in": {"$add": ["$$i", "$$j", "$$this"]}}}}}}}  # fmt: skip


def _windows(**output: Any) -> list[dict[str, Any]]:
    """Windows of up to 10,000 documents around each of as many."""
    output["window"] = {"documents": [-5000, 5000]}
    documents = [{"$documents": [{"i": list(range(10_000))}]}, {"$unwind": "$i"}]
    return [*documents, {"$setWindowFields": {"sortBy": {"i": 1}, "output": {"n": output}}}, {"$match": {"n": -1}}]


LONG_PIPELINES: dict[str, list[dict[str, Any]]] = {
    "a cross product": ENDLESS["pipeline"],
    "a map in a map": [{"$documents": [{}]}, {"$project": {"n": {"$size": _NESTED_MAPS}}}],
    "windows of covariances": _windows(**{"$covariancePop": ["$i", "$i"]}),
    "windows of maxima": _windows(**{"$max": "$i"}),
    "windows of slopes": _windows(**{"$derivative": {"input": "$i"}}),
}  # fmt: skip


@pytest.mark.parametrize("what", LONG_PIPELINES)
def test_a_running_command_ends_when_its_time_is_over(server: headrace.Server, what: str) -> None:
    with RawClient(server.address) as long:
        command = {**ENDLESS, "pipeline": LONG_PIPELINES[what], "maxTimeMS": 100}
        assert long.ask(command, "admin")["code"] == 50


def test_a_command_whose_client_has_gone_ends(server: headrace.Server) -> None:
    with RawClient(server.address) as other:
        with RawClient(server.address) as long:
            long.send(ENDLESS, "admin")
            until(lambda: running(other, "aggregate"))
        until(lambda: not running(other, "aggregate"))


def test_a_server_stops_while_commands_run() -> None:
    with headrace.Server() as server, RawClient(server.address) as other:
        clients = [RawClient(server.address) for _ in range(5)]
        for client in clients:
            client.send(ENDLESS, "admin")
        until(lambda: len(running(other, "aggregate")) >= len(clients))
        server.close()
        for client in clients:
            assert client.receive()[1]["code"] == 11600
            client.socket.close()


def test_a_cursor_is_read_by_one_getmore_at_a_time_which_ends_when_the_cursor_is_killed(
    server: headrace.Server,
) -> None:
    slow = {
        "$expr": {"$gt": [{"$size": {"$map": {"input": {"$range": [0, 20_000]}, "in": {"$add": ["$$this", 1]}}}}, 0]}
    }
    with RawClient(server.address) as one, RawClient(server.address) as two:
        for key in range(0, 30_000, 10_000):
            one.ask({"insert": "c", "documents": [{"_id": key + number} for number in range(10_000)]})
        cursor = Int64(one.ask({"find": "c", "filter": slow, "batchSize": 1})["cursor"]["id"])
        # To read the rest would take many minutes.
        get_more = {"getMore": cursor, "collection": "c", "batchSize": 29_000}
        one.send(get_more)
        until(lambda: running(two, "getMore"))
        assert two.ask(get_more)["code"] == 143
        assert two.ask({"killCursors": "c", "cursors": [cursor]})["cursorsKilled"] == [cursor]
        assert one.receive()[1]["code"] == 237
        assert two.ask(get_more)["code"] == 43
        assert not running(two, "getMore")


@pytest.mark.parametrize("command", ["killSessions", "killAllSessions", "killAllSessionsByPattern"])
def test_to_kill_a_session_ends_its_running_command(server: headrace.Server, command: str) -> None:
    one, two = ({"id": Binary(bytes(15) + bytes([number]), 4)} for number in (1, 2))
    listed = {"killSessions": [one], "killAllSessions": [], "killAllSessionsByPattern": [{"lsid": one}]}[command]
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.address)) for _ in range(4)]
        for client, session in zip(clients, ({"lsid": one}, {"lsid": two}, {}), strict=False):
            client.send({**ENDLESS, **session}, "admin")
        other = clients[-1]
        until(lambda: len(running(other, "aggregate")) == 3)
        assert other.ask({"endSessions": [one, two]}, "admin")["ok"] == 1.0
        assert len(running(other, "aggregate")) == 3
        assert other.ask({command: listed, "lsid": two}, "admin")["ok"] == 1.0
        assert clients[0].receive()[1]["code"] == 11601
        if not listed:
            assert clients[1].receive()[1]["code"] == 11601
        assert len(running(other, "aggregate")) == (2 if listed else 1)


def test_a_read_continues_past_documents_inserted_meanwhile(server: headrace.Server) -> None:
    """As on MongoDB: a document that is there all the time is read once; what changed ahead of the read may be seen."""
    server._running.scheduler.turns.seconds = 0.0
    with RawClient(server.address) as reading, RawClient(server.address) as writing:
        writing.ask({"insert": "c", "documents": [{"_id": key, "n": 0} for key in range(500)]})
        reading.send({"find": "c", "batchSize": 1000})
        deleted, added = range(400, 450), range(500, 520)
        writing.ask({"delete": "c", "deletes": [{"q": {"_id": key}, "limit": 1} for key in deleted]})
        writing.ask({"insert": "c", "documents": [{"_id": key} for key in added]})
        writing.ask({"drop": "other"})
        keys = [document["_id"] for document in reading.receive()[1]["cursor"]["firstBatch"]]
        assert keys == sorted(set(keys))
        assert set(range(400)) | set(range(450, 500)) <= set(keys) <= set(range(520))


def test_an_explain_counts_everything(server: headrace.Server) -> None:
    server._running.scheduler.turns.seconds = 0.0
    with RawClient(server.address) as client:
        client.ask({"insert": "c", "documents": [{"_id": key} for key in range(300)]})
        explained = client.ask({"explain": {"find": "c", "filter": {"x": None}}, "verbosity": "executionStats"})
        stats = explained["executionStats"]
        assert (stats["totalDocsExamined"], stats["nReturned"]) == (300, 300)


def test_an_explained_pipeline_pauses_between_the_documents_of_each_stage(server: headrace.Server) -> None:
    turns = server._running.scheduler.turns
    pipeline = [{"$documents": [{"a": list(range(100))}]}, {"$unwind": "$a"}, {"$match": {"a": -1}}]
    with RawClient(server.address) as client:
        turns.seconds, before = 0.0, turns.pause_count
        client.ask({
            "explain": {"aggregate": 1, "pipeline": pipeline, "cursor": {}}, "verbosity": "executionStats", "$db": "t",
        })  # fmt: skip
        assert turns.pause_count - before >= 100


def test_a_write_does_not_pause_between_its_look_at_a_unique_index_and_the_change(server: headrace.Server) -> None:
    """A document of megabytes is decoded in pieces, but not in the middle of a write transaction."""
    server._running.scheduler.turns.seconds = 0.0
    with RawClient(server.address) as client, RawClient(server.address) as other:
        client.ask({"createIndexes": "c", "indexes": [{"key": {"k": 1}, "name": "k_1", "unique": True}]})
        large = {"_id": 1, "k": 1, "a": ["x" * 100] * 20_000}
        client.send({"insert": "c", "documents": [large]})
        other.send({"insert": "c", "documents": [{"_id": 2, "k": 1}]})
        inserted = [client.receive()[1].get("n", 0), other.receive()[1].get("n", 0)]
        assert sorted(inserted) == [0, 1]
        client.ask({"update": "c", "updates": [{"q": {}, "u": {"$set": {"k": 2}}, "multi": True}]})
        assert client.ask({"validate": "c"})["valid"]


def test_long_messages_are_read_in_turns(server: headrace.Server) -> None:
    server._running.scheduler.turns.seconds = 0.0
    numbers = list(range(50_000))
    with RawClient(server.address) as client, RawClient(server.address) as other:
        client.ask({"insert": "c", "documents": [{"_id": 1, "n": 7, "a": numbers}]})
        client.send({"find": "c", "filter": {"n": {"$in": numbers}}})
        assert other.ask({"ping": 1})["ok"] == 1.0
        assert client.receive()[1]["cursor"]["firstBatch"][0]["a"] == numbers
        assert client.ask({"find": "c", "filter": {"$or": [{"x": -n} for n in range(2000)]}})["cursor"]["id"] == 0


def test_others_are_served_while_a_message_is_decompressed_in_thread(
    server: headrace.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decompressor holds its thread until another client has been answered."""
    begun, go_on = threading.Event(), threading.Event()

    def decompress_raw(data: Any) -> bytes:
        begun.set()
        assert go_on.wait(60)
        return bytes(original(data))

    original = cramjam.snappy.decompress_raw
    monkeypatch.setattr("headrace.wire.compression.cramjam.snappy.decompress_raw", decompress_raw)
    plain = message({"insert": "c", "documents": [{"_id": 1, "note": "x" * 1_000_000}], "$db": "t"})
    packed = bytes(cramjam.snappy.compress_raw(plain[16:]))
    header = struct.pack("<iiiiiiB", 25 + len(packed), 1, 0, 2012, 2013, len(plain) - 16, 1)
    with RawClient(server.address) as long, RawClient(server.address) as left, RawClient(server.address) as other:
        long.socket.sendall(header + packed)
        begun.wait()
        left.socket.sendall(header + packed)
        assert other.ask({"ping": 1})["ok"] == 1.0
        left.socket.close()
        assert other.ask({"ping": 1})["ok"] == 1.0
        go_on.set()
        assert struct.unpack_from("<i", long.socket.recv(4096), 12) == (2012,)
        until(lambda: not server._running.scheduler._in_thread)
        assert other.ask({"count": "c"})["n"] == 1


def test_a_server_that_stops_does_not_go_on_with_what_runs_in_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def decompress_raw(data: Any) -> bytes:
        begun.set()
        return bytes(len(data))

    monkeypatch.setattr("headrace.wire.compression.cramjam.snappy.decompress_raw", decompress_raw)
    packed = bytes(cramjam.snappy.compress_raw(bytes(1_000_000)))
    with headrace.Server() as server, RawClient(server.address) as long:
        long.socket.sendall(struct.pack("<iiiiiiB", 25 + len(packed), 1, 0, 2012, 2013, 1_000_000, 1) + packed)
        begun.wait()


def test_replies_of_many_clients_are_put_together_one_after_the_other(
    server: headrace.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds the batch some times over until it is sent."""
    original = reply.array

    def array(documents: Any) -> bytes:
        open_now.append(1)
        most.append(len(open_now))
        try:
            return original(documents)
        finally:
            open_now.pop()

    open_now: list[int] = []
    most: list[int] = []
    server._running.scheduler.turns.seconds = 0.0
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.address)) for _ in range(8)]
        clients[0].ask({"insert": "c", "documents": [{"_id": key, "note": "x" * 1_000_000} for key in range(3)]})
        monkeypatch.setattr("headrace.dispatch.reply.array", array)
        for client in clients:
            client.send({"find": "c"})
        for client in clients:
            assert len(client.receive()[1]["cursor"]["firstBatch"]) == 3
    assert len(most) == 8
    assert max(most) == 1


def test_a_command_that_has_failed_does_not_run_out_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error may be long, as the key of an index is, so that it is encoded in pieces."""
    is_over = False
    encode = reply.error_reply

    def encoded(*arguments: Any) -> bytes:
        nonlocal is_over
        is_over = True
        return encode(*arguments)

    def check_deadline(context: CommandContext) -> None:
        if is_over:
            raise Interrupted(50, "operation exceeded time limit")

    begin = Turns.__init__
    monkeypatch.setattr(Turns, "__init__", lambda self, seconds=0.0: begin(self, 0.0))
    monkeypatch.setattr(reply, "error_reply", encoded)
    monkeypatch.setattr(CommandContext, "_check_deadline", check_deadline)
    with headrace.Server() as server, RawClient(server.address) as client:
        client.ask({"insert": "c", "documents": [{"_id": key, "n": "x" * 2_000_000} for key in range(2)]})
        index = {"key": {"n": 1}, "name": "n", "unique": True}
        error = client.ask({"createIndexes": "c", "indexes": [index]})
    assert is_over and error["code"] == 11000 and len(error["errmsg"]) > 2_000_000


def test_a_deadline_leaves_what_was_done(tmp_path: Path) -> None:
    clock = FakeClock()
    with DrivenServer(tmp_path, clock=clock) as at:

        def changed() -> list[int]:
            found = at.must("t", {"find": "c", "filter": {"n": 1}, "batchSize": 400})
            return [document["_id"] for document in found["cursor"]["firstBatch"]]

        at.must("t", {"insert": "c", "documents": [{"_id": key, "n": 0} for key in range(400)]})
        update = {"update": "c", "updates": [{"q": {"n": 0}, "u": {"$inc": {"n": 1}}, "multi": True}], "maxTimeMS": 100}
        reply, _ = at.in_turns("t", update, lambda count: clock.advance(200 if changed() else 0))
        assert reply["code"] == 50
        assert changed() == list(range(len(changed()))) and 0 < len(changed()) < 400
