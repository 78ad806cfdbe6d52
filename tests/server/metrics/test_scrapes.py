"""`--metricsPort`: the metrics are those of serverStatus, and no scraper disturbs the server."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pymongo
import pytest

import headrace
from headrace import limits
from headrace.clock import monotonic
from headrace.server.daemon import BackupProcess
from headrace.server.metrics.exposition import _HOLDER, ScrapeListener

DASHBOARD = Path(__file__).parents[3] / "deploy" / "grafana-dashboard.json"
SAMPLE = re.compile(r'(\w+)(?:\{([a-z]+="[^"]*")\})? (\S+)')


@pytest.fixture
def server() -> Iterator[headrace.Server]:
    with headrace.Server(metrics_port=0) as running:
        yield running


def scrapes(server: headrace.Server) -> ScrapeListener:
    listener = server._running.scrapes
    assert listener is not None
    return listener


def ask(server: headrace.Server, path: str, method: str = "GET") -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", scrapes(server).port, timeout=60)
    connection.request(method, path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def metrics(server: headrace.Server) -> dict[str, float]:
    """Numbers by name and label; each family has its head before its samples, once."""
    found: dict[str, float] = {}
    types: dict[str, str] = {}
    for line in ask(server, "/metrics")[1].splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types
            types[name] = kind
        elif not line.startswith("# HELP "):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            family = re.sub("_(bucket|count|sum)$", "", match[1])
            assert list(types)[-1] in (match[1], family) and (match[1] in types or types[family] == "histogram")
            key = match[1] + (f"{{{match[2]}}}" if match[2] else "")
            assert key not in found
            found[key] = float(match[3])
    return found


def test_the_metrics_are_those_of_server_status(server: headrace.Server) -> None:
    with pymongo.MongoClient(server.uri) as client, client.shop.orders.watch(max_await_time_ms=1) as stream:
        client.shop.orders.insert_many([{"_id": number} for number in range(10)])
        client.shop.orders.update_one({"_id": 1}, {"$set": {"n": 1}})
        client.shop.orders.find_one({"_id": 1})
        with pytest.raises(pymongo.errors.OperationFailure):
            client.shop.command("find", "orders", filter={"$none": 1})
        assert stream.try_next() is not None
        status = client.admin.command("serverStatus")
        shown = metrics(server)
    for kind, count in status["opcounters"].items():
        # The request for serverStatus has been counted after its answer was made.
        assert shown[f'headrace_operations_total{{kind="{kind}"}}'] == count + (kind == "command")
    assert shown['headrace_commands_failed_total{command="find"}'] == 1
    assert shown['headrace_documents_total{what="inserted"}'] == 10
    assert shown["headrace_commit_seconds_count"] >= status["metrics"]["commits"]["total"] >= 2
    assert shown['headrace_commit_seconds_bucket{le="+Inf"}'] == shown["headrace_commit_seconds_count"]
    assert shown["headrace_commit_writes_total"] == status["metrics"]["commits"]["writes"]
    assert shown["headrace_connections"] == status["connections"]["current"]
    assert shown['headrace_streams{reads="memory"}'] + shown['headrace_streams{reads="oplog"}'] == 1
    assert 'headrace_stream_lag_seconds{scope="shop.orders"}' in shown
    assert shown['headrace_memory_bytes{holder="open cursors"}'] == limits.CURSOR_BYTES
    assert shown["headrace_memory_limit_bytes"] == status["mem"]["limitBytes"]
    assert shown["headrace_oplog_entries"] >= 11 and shown["headrace_oplog_window_seconds"] >= 0
    assert shown["headrace_primary"] == 1 and shown["headrace_data_file_bytes"] > 0


def test_a_server_without_an_oplog_has_no_metrics_of_one() -> None:
    with headrace.Server(metrics_port=0, oplog=False) as server:
        shown = metrics(server)
    assert "headrace_oplog_entries" not in shown and "headrace_connections" in shown


def test_the_backup_beside_a_server_is_seen(server: headrace.Server) -> None:
    backup = server._running.backup = BackupProcess([])
    shown = metrics(server)
    assert shown["headrace_backup_running"] == 0 and "headrace_backup_position_seconds" not in shown
    backup.position = 1_700_000_000 << 32 | 5
    assert metrics(server)["headrace_backup_position_seconds"] == 1_700_000_000


def test_there_are_few_series_however_many_holders_and_scopes_there_are(
    server: headrace.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SCRAPE_SCOPE_COUNT_MAX", 3)
    with pymongo.MongoClient(server.uri) as one, pymongo.MongoClient(server.uri) as other:
        streams = [client.shop[f"c{number}"].watch() for client in (one, other) for number in range(5)]
        shown = metrics(server)
        for stream in streams:
            stream.close()
    assert sum(name.startswith("headrace_stream_lag_seconds{") for name in shown) == 3
    assert shown['headrace_streams{reads="memory"}'] + shown['headrace_streams{reads="oplog"}'] == 10
    assert shown['headrace_memory_bytes{holder="open cursors"}'] == 10 * limits.CURSOR_BYTES
    names = ("transaction 17", "the paused find of 127.0.0.1:5", "entries of a.b for change streams")
    assert [_HOLDER.sub("", name) for name in names] == ["transaction", "the paused find", "entries"]


def test_healthz_says_whether_the_server_serves(server: headrace.Server) -> None:
    assert ask(server, "/healthz") == (200, "ok\n")
    writer = server._running.writer
    writer.busy_since = monotonic() - limits.HEALTH_STALL_SECONDS - 5
    status, reason = ask(server, "/healthz")
    assert status == 503 and reason.startswith("no write has ended for 1")
    writer.busy_since = None
    server._running.failure = "a commit failed"
    assert ask(server, "/healthz") == (503, "a commit failed\n")
    server._running.failure = None


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("POST", "/metrics", 405), ("HEAD", "/metrics", 200), ("GET", "/metrics?name=a", 200)],
)
def test_a_request_is_answered_by_its_method_and_path(
    server: headrace.Server, method: str, path: str, status: int
) -> None:
    answer = ask(server, path, method)
    assert answer[0] == status and (answer[1] == "") == (method == "HEAD")


def test_clients_are_served_beside_scrapers_that_do_not_read_or_write(server: headrace.Server) -> None:
    listener, idle = scrapes(server), []
    for number in range(48):
        silent = socket.create_connection(("127.0.0.1", listener.port))
        if number % 2:
            silent.sendall(b"GET /metrics HTTP/1.1\r\n")
        idle.append(silent)
    with pymongo.MongoClient(server.uri) as client:
        client.shop.orders.insert_one({})
    assert metrics(server)["headrace_commit_writes_total"] == 1
    long = socket.create_connection(("127.0.0.1", listener.port))
    long.settimeout(60)
    long.sendall(b"GET /" + b"a" * limits.SCRAPE_BYTES_MAX)
    with long:
        assert not received(long)
    bad = socket.create_connection(("127.0.0.1", listener.port))
    bad.sendall(b"hello\r\n\r\n")
    with bad:
        assert received(bad).startswith(b"HTTP/1.1 400 ")
    for silent in idle:
        silent.close()


def received(peer: socket.socket) -> bytes:
    """All that comes until the end, which may be a reset."""
    data = b""
    try:
        while more := peer.recv(65536):
            data += more
    except ConnectionResetError:
        pass
    return data


def test_a_scraper_has_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCRAPE_SECONDS", 0.01)
    with headrace.Server(metrics_port=0) as server:
        silent = socket.create_connection(("127.0.0.1", scrapes(server).port))
        silent.settimeout(60)
        assert received(silent) == b""
        silent.close()


def test_a_port_that_is_taken_is_an_error_at_the_start() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="cannot listen on 127"):
            headrace.Server(metrics_port=taken.getsockname()[1]).start()


def expressions(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (text for name, text in value.items() if name == "expr")
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from expressions(item)


def test_the_dashboard_asks_for_metrics_that_there_are(server: headrace.Server) -> None:
    asked = set(re.findall(r"headrace_\w+", " ".join(expressions(json.loads(DASHBOARD.read_text("utf-8"))))))
    backup = BackupProcess([])
    backup.position = 1 << 32
    server._running.backup = backup
    with pymongo.MongoClient(server.uri) as client, client.shop.orders.watch():
        client.shop.orders.insert_one({})
        with pytest.raises(pymongo.errors.OperationFailure):
            client.shop.command("find", "orders", filter={"$none": 1})
        there = {name.partition("{")[0] for name in metrics(server)}
    assert len(asked) > 12 and asked <= there
