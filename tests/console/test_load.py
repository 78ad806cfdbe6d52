"""The console under load: 10,000 events at once, a browser that does not read, 100 browsers."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from headrace.cli.console.application import ConsoleServer
from headrace.cli.console.broadcast import KEPT_COUNT, MessageLog
from headrace.cli.console.tailing import SHOWN_MAX, STREAMS_MAX
from tests.console.conftest import Events, signed
from tests.waiting import until

pytestmark = pytest.mark.long


def console_streams(client: Any) -> int:
    """The change streams that the console has open at the server."""
    operations = client.admin.aggregate([{"$currentOp": {"idleCursors": True}}])
    return sum(one.get("appName") == "headrace console" and "changeStream" in one for one in operations)


def test_of_10000_events_the_newest_are_shown_and_the_others_counted(browser: httpx.Client, client: Any) -> None:
    with browser.stream("GET", "/api/tail", params={"ns": "shop.many"}) as response:
        events = Events(response)
        events.next("opened")
        client.shop.many.insert_many([{"_id": number} for number in range(10_000)], ordered=False)
        counted = sent = batches = 0
        keys: list[Any] = []
        while counted < 10_000:
            batch = events.next("events")
            batches += 1
            sent += len(batch["events"])
            counted += len(batch["events"]) + batch["notShown"]
            keys += [json.loads(event["key"])["_id"] for event in batch["events"]]
    assert counted == 10_000 and sent <= batches * SHOWN_MAX
    assert keys == sorted(keys) and keys[-1] == 9_999


async def test_a_browser_that_does_not_read_loses_messages_and_is_told_how_many_events() -> None:
    log = MessageLog()
    slow, quick = log.read(), log.read()
    for number in range(KEPT_COUNT + 5):
        log.publish("events", number, 10)
        assert f"data: {number}\n".encode() in await anext(quick)
    assert b'event: missed\ndata: {"count": 50}' in await anext(slow)
    kept = [await anext(slow) for _ in range(KEPT_COUNT)]
    assert kept[0].startswith(b"event: events\ndata: 5\n")
    assert log.reader_count == 2
    log.is_ended = True
    assert [message async for message in slow] == [] == [message async for message in quick]
    assert log.reader_count == 0


async def test_a_reader_that_closes_before_its_first_message_is_gone() -> None:
    log = MessageLog()
    reader = log.read()
    assert log.reader_count == 1
    await reader.aclose()
    await reader.aclose()
    assert log.reader_count == 0


async def test_a_reader_ends_after_the_last_message_of_its_log() -> None:
    log = MessageLog()
    slow = log.read()
    for number in range(KEPT_COUNT):
        log.publish("events", number, 1)
    log.is_ended = True
    assert len([message async for message in slow]) == KEPT_COUNT
    assert [message async for message in log.read()] == []


def test_a_connection_that_reads_nothing_holds_up_nobody(
    console: ConsoleServer, browser: httpx.Client, client: Any
) -> None:
    cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    with socket.create_connection(("127.0.0.1", console.port)) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host = f"127.0.0.1:{console.port}"
        stuck.sendall(f"GET /api/tail?ns=shop.large HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n".encode())
        with browser.stream("GET", "/api/tail", params={"ns": "shop.large"}) as response:
            events = Events(response)
            events.next("opened")
            seen = 0
            for number in range(12):
                client.shop.large.insert_many([{"text": "x" * 3000} for _ in range(50)])
                while seen < (number + 1) * 50:
                    batch = events.next("events")
                    seen += len(batch["events"]) + batch["notShown"]
            assert seen == 600
            tail = next(iter(console._sessions.base.tails._streams.values()))
            assert tail.log.reader_count == 2


def test_100_browsers_share_one_sampler_and_one_stream(console: ConsoleServer, client: Any) -> None:
    before = threading.active_count()
    with ExitStack() as opened:
        browsers = [opened.enter_context(signed(console)) for _ in range(100)]
        tails = [
            Events(opened.enter_context(one.stream("GET", "/api/tail", params={"ns": "shop.shared"})))
            for one in browsers
        ]
        for tail in tails:
            tail.next("opened")
        assert console_streams(client) == 1
        client.shop.shared.insert_one({"_id": 1})
        for tail in tails:
            assert tail.next("events")["events"][0]["operation"] == "insert"
        lives = [Events(opened.enter_context(one.stream("GET", "/api/live"))) for one in browsers]
        for live in lives:
            live.next("history")
        assert threading.active_count() - before < 50, "no thread for each browser"
    with signed(console) as browser:
        assert browser.get("/api/session").status_code == 200


def test_the_streams_of_a_console_are_limited(browser: httpx.Client, console: ConsoleServer) -> None:
    with ExitStack() as opened:
        for number in range(STREAMS_MAX + 1):
            response = opened.enter_context(browser.stream("GET", "/api/tail", params={"ns": f"limited.c{number}"}))
            if response.status_code == 400:
                break
        assert "change streams open" in json.loads(response.read())["error"]
        streams = list(console._sessions.base.tails._streams.values())
    until(lambda: all(stream.is_ended for stream in streams))


def test_a_stream_ends_with_its_last_reader(browser: httpx.Client, console: ConsoleServer) -> None:
    with browser.stream("GET", "/api/tail", params={"ns": "shop.left"}) as response:
        Events(response).next("opened")
        streams = console._sessions.base.tails._streams
        stream = next(one for query, one in streams.items() if query.namespace == "shop.left")
    stream._ended.wait(60)
    assert stream.is_ended


def test_a_server_that_is_not_there_is_said() -> None:
    console = ConsoleServer("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50")
    thread = console.start()
    with signed(console) as browser:
        answer = browser.get("/api/session")
        assert answer.status_code == 502 and "cannot be reached" in answer.json()["error"]
    console.stop()
    thread.join(10)
