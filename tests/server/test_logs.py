"""The log: structured lines, slow operations, and nothing in it that a client has stored or knows."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
from pymongo.errors import PyMongoError

import headrace
from headrace import limits
from headrace.commands.table import STATIC_COMMANDS
from headrace.dispatch.profiling import profiler
from headrace.server.logs import JsonFormatter, formatter
from headrace.turns import Turns
from headrace.values.bson import iter_elements
from tests.server.raw import RawClient

CANARY = "canary-7f3a"


@pytest.fixture(params=["text", "json"])
def log(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """What a server logs from now on, warnings and all else."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter(request.param))
    logger = logging.getLogger("headrace")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(level)


def slow_server(monkeypatch: pytest.MonkeyPatch, **options: Any) -> headrace.Server:
    """A server in which each tick is a pause, and each command that has paused is slow."""
    begin = Turns.__init__
    monkeypatch.setattr(Turns, "__init__", lambda self, seconds=0.0: begin(self, 0.0))
    return headrace.Server(slow_ms=0, **options)


def events(log: io.StringIO, number: int) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.getvalue().splitlines() if line.startswith("{")]
    return [line for line in lines if line["id"] == number]


def test_a_line_has_mongodbs_fields(log: io.StringIO) -> None:
    with headrace.Server() as server, pymongo.MongoClient(server.uri, appname="shop") as client:
        client.admin.command("ping")
    text = log.getvalue()
    assert "Connection accepted" in text and "client metadata" in text and '"name":"shop"' in text
    if text.startswith("{"):
        line = events(log, 51800)[0]
        assert list(line) == ["t", "s", "c", "id", "ctx", "msg", "attr"] and line["s"] == "I" and line["c"] == "NETWORK"
        assert line["ctx"].startswith("conn") and line["t"]["$date"].endswith("+00:00")
        assert events(log, 22943)[0]["attr"]["connectionCount"] == 1


def test_a_slow_command_is_logged_with_its_plan_and_counts(monkeypatch: pytest.MonkeyPatch, log: io.StringIO) -> None:
    with slow_server(monkeypatch) as server, pymongo.MongoClient(server.uri) as client:
        client.t.c.insert_many({"_id": number, "a": CANARY} for number in range(500))
        assert client.t.c.count_documents({"a": {"$ne": 1}}) == 500
        list(client.t.c.find({"_id": {"$gt": 100}, "a": CANARY}, batch_size=1000))
    assert CANARY not in log.getvalue()
    if log.getvalue().startswith("{"):
        by_command = {next(iter(line["attr"]["command"])): line["attr"] for line in events(log, 51803)}
        assert by_command["aggregate"]["planSummary"] == "COLLSCAN" and by_command["aggregate"]["docsExamined"] == 500
        of_find = by_command["find"]
        assert (
            of_find["planSummary"] == "IXSCAN { _id: 1 }" and of_find["docsExamined"] == of_find["keysExamined"] == 399
        )
        assert of_find["ns"] == "t.c" and of_find["command"] == {"find": "c", "$db": "t"} and of_find["numYields"] > 0
        assert "insert" in by_command and all(line["s"] == "I" for line in events(log, 51803))


def test_the_documents_of_a_long_batch_are_not_counted_anew(monkeypatch: pytest.MonkeyPatch, log: io.StringIO) -> None:
    walked = 0

    def counted(*arguments: Any) -> Iterator[Any]:
        nonlocal walked
        for element in iter_elements(*arguments):
            walked += 1
            yield element

    monkeypatch.setattr(profiler, "iter_elements", counted)
    with slow_server(monkeypatch) as server, pymongo.MongoClient(server.uri) as client:
        client.t.c.insert_many({"_id": number} for number in range(3000))
        assert len(list(client.t.c.find(batch_size=5000))) == 3000
        assert len(list(client.t.c.find({"_id": {"$lt": 3}}))) == 3
    assert walked < 100
    if log.getvalue().startswith("{"):
        returned = [line["attr"].get("nreturned") for line in events(log, 51803) if "find" in line["attr"]["command"]]
        assert returned == [3000, 3]


def test_a_slow_command_is_logged_with_what_it_has_changed_through_an_index(
    monkeypatch: pytest.MonkeyPatch, log: io.StringIO
) -> None:
    with slow_server(monkeypatch) as server, pymongo.MongoClient(server.uri) as client:
        c = client.t.c
        c.insert_many({"_id": number, "n": number, "a": CANARY} for number in range(500))
        c.create_index("n")
        assert len(list(c.find({"n": {"$gte": 200}}, batch_size=1000))) == 300
        assert c.count_documents({"n": {"$lt": 100}}) == 100
        c.update_many({"n": {"$gte": 400}}, {"$set": {"b": CANARY}})
        c.delete_many({"n": {"$lt": 50}})
        c.find_one_and_update({"a": CANARY, "n": {"$gt": 490}}, {"$set": {"b": 1}}, sort=[("b", 1)])
    assert CANARY not in log.getvalue()
    if log.getvalue().startswith("{"):
        lines = [line["attr"] for line in events(log, 51803)]
        by_command = {next(iter(line["command"])): line for line in lines}
        examined = {
            name: (line.get("planSummary"), line.get("keysExamined"), line.get("docsExamined"))
            for name, line in by_command.items()
        }
        assert examined["find"] == ("IXSCAN { n: 1 }", 300, 300)
        assert examined["update"] == ("IXSCAN { n: 1 }", 100, 100)
        assert examined["delete"] == ("IXSCAN { n: 1 }", 50, 50)
        assert examined["findAndModify"] == ("IXSCAN { n: 1 }", 9, 9)
        assert by_command["find"]["nreturned"] == 300
        assert by_command["insert"]["ninserted"] == 500 and by_command["delete"]["ndeleted"] == 50
        assert (by_command["update"]["nMatched"], by_command["update"]["nModified"]) == (100, 100)


def test_nothing_that_a_client_stores_or_knows_is_in_the_log(monkeypatch: pytest.MonkeyPatch, log: io.StringIO) -> None:
    """A canary is the value of every field of every command; most of these fail, each in its way.

    What a client says of itself in a hello is logged, as by MongoDB.
    """
    monkeypatch.setattr(limits, "LOGIN_DELAY_MS", 0)
    with slow_server(monkeypatch, enable_test_commands=True) as server:
        names = sorted({command.name for command in server._running.engine.commands.values()} - {"shutdown"})
        with RawClient(server.address) as client:
            client.ask({"insert": "c", "documents": [{"_id": number, "a": CANARY} for number in range(300)]})
            for name in STATIC_COMMANDS.keys() - {"rotateCertificates", "shutdown"}:
                client.ask({name: CANARY}, "admin")
            for name in names:
                fields = sorted(field_names(server, name))
                for value in (CANARY, {CANARY: CANARY}, [CANARY], [{"q": {"a": CANARY}, "u": {"$set": {"b": CANARY}}}]):
                    client.ask({name: "c", **dict.fromkeys(fields, value)}, "t")
                    for field in fields:
                        client.ask({name: "c", field: value}, "t")
        with pymongo.MongoClient(server.uri) as client:
            logged_in_with_the_canary(client, server)
            client.t.command("collMod", "c", validator={})  # one of the fields was this
            client.t.c.update_many({"a": CANARY}, {"$set": {"b": CANARY}})
            client.t.c.delete_many({"a": CANARY, "c": {"$ne": CANARY}})
    assert CANARY not in log.getvalue() and "Slow query" in log.getvalue()


def field_names(server: headrace.Server, name: str) -> set[str]:
    command = server._running.engine.commands[name]
    return set(command.fields.by_name) - {name, "client"}


def logged_in_with_the_canary(client: Any, server: headrace.Server) -> None:
    client.admin.command("createUser", "ann", pwd=CANARY, roles=["root"], customData={"a": CANARY})
    uri = f"mongodb://ann:{CANARY}@{server.address}/?directConnection=true"
    for wrong in ("", "x"):
        with pymongo.MongoClient(uri.replace(CANARY, CANARY + wrong)) as other:
            try:
                other.t.c.find_one({"a": CANARY}, comment=CANARY)
            except PyMongoError:
                assert wrong


def test_an_exception_inside_the_server_is_logged_without_its_text(
    monkeypatch: pytest.MonkeyPatch, log: io.StringIO
) -> None:
    with headrace.Server() as server, RawClient(server.address) as client:

        def fail(*_: object) -> None:
            raise KeyError(CANARY)

        monkeypatch.setattr(server._running.engine, "run_read", fail)
        assert client.ask({"find": "c", "filter": {"a": CANARY}})["ok"] == 0.0
    assert "KeyError" in log.getvalue() and CANARY not in log.getvalue()


def test_invalid_messages_are_one_line_in_a_while(log: io.StringIO) -> None:
    with headrace.Server() as server:
        for _ in range(20):
            with RawClient(server.address) as stranger:
                stranger.socket.sendall(b"\0" * 16)
                assert stranger.socket.recv(1) == b""
    assert log.getvalue().count("sent an invalid message") == 1


def test_lines_that_are_no_events_have_a_stable_number() -> None:
    lines = [
        json.loads(JsonFormatter().format(logging.makeLogRecord({
            "msg": "a %s", "args": (name,), "name": "headrace.store", "levelname": "WARNING",
        })))
        for name in ("b", "c")
    ]  # fmt: skip
    assert lines[0]["id"] == lines[1]["id"] >= 9_000_000 and [line["msg"] for line in lines] == ["a b", "a c"]
    assert lines[0]["s"] == "W" and lines[0]["c"] == "STORAGE"


def test_get_log_has_the_same_lines_and_long_ones_stay_json() -> None:
    with headrace.Server(log_format="json") as server, RawClient(server.address) as client:
        logging.getLogger("headrace.server").warning("%s", "x" * 5000)
        logging.getLogger("headrace.server").warning("short")
        lines = [json.loads(line) for line in client.ask({"getLog": "global"}, "admin")["log"]]
    assert [line["msg"][:5] for line in lines] == ["xxxxx", "short"]
    assert lines[0]["truncated"] is True and "truncated" not in lines[1]
