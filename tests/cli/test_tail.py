"""`headrace tail`: what it prints, where it begins, what it runs, and how it goes on."""

from __future__ import annotations

import io
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest
from bson import Timestamp

import headrace
from headrace.cli.arguments import Failed
from headrace.cli.connection import connected
from headrace.cli.main import main
from headrace.cli.tail.following import Follow
from headrace.cli.tail.lines import EventLines
from headrace.cli.tail.start import start_of
from headrace.cli.terminal import Painter
from headrace.values.bson import encode
from headrace.values.token import make_event_token
from tests.ports import free_port
from tests.waiting import until

LARGE = 9 * 1024 * 1024


@pytest.fixture(scope="module")
def server() -> Iterator[headrace.Server]:
    with headrace.Server() as running:
        yield running


@pytest.fixture
def shop(server: headrace.Server) -> Iterator[Any]:
    with pymongo.MongoClient[dict[str, Any]](server.uri) as client:
        client.drop_database("shop")
        yield client.shop


def position(shop: Any) -> str:
    """Where the oplog ends now, as an argument of --from."""
    with shop.watch() as stream:
        return json.dumps(stream.resume_token)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["tail", *words]) == 0
    return [line.partition("Z  ")[2] or line for line in capsys.readouterr().out.splitlines()]


def test_an_event_is_shown_with_what_has_changed(
    server: headrace.Server, shop: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
    begin = position(shop)
    shop.orders.insert_one({"_id": 1, "item": "pen", "qty": 2, "lines": [{"n": 1}, {"n": 2}], "gone": True})
    shop.orders.update_one({}, {"$set": {"qty": 3, "lines.0.n": 9, "tags": ["new"]}, "$unset": {"gone": 1}})
    shop.orders.replace_one({}, {"item": "pencil", "qty": 3.0, "lines": [{"n": 9}, {"n": 2}]})
    shop.orders.delete_one({})
    shop.orders.rename("old")
    assert printed(capsys, server.uri, "shop", "--from", begin, "--count", "5") == [
        'insert    shop.orders  {"_id": 1}',
        '    + {"_id": 1, "item": "pen", "qty": 2, "lines": [{"n": 1}, {"n": 2}], "gone": true}',
        'update    shop.orders  {"_id": 1}',
        "    ~ qty        2 -> 3",
        '    + tags       ["new"]',
        "    ~ lines.0.n  1 -> 9",
        "    - gone       true",
        'replace   shop.orders  {"_id": 1}',
        '    ~ item  "pen" -> "pencil"',
        "    ~ qty   3 -> 3.0",
        '    - tags  ["new"]',
        'delete    shop.orders  {"_id": 1}',
        '    - {"_id": 1, "item": "pencil", "qty": 3.0, "lines": [{"n": 9}, {"n": 2}]}',
        "rename    shop.orders",
        '    to: {"db": "shop", "coll": "old"}',
    ]


def test_without_pre_images_the_new_values_are_shown(
    server: headrace.Server, shop: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = position(shop)
    shop.plain.insert_one({"_id": 1, "a": list(range(100)), "b": 1, "c": 1})
    shop.plain.update_one({}, [{"$set": {"a": {"$slice": ["$a", 99]}, "c": 2}}, {"$unset": "b"}])
    words = [server.uri, "shop.plain", "--from", begin, "--count", "2", "--fullDocument", "updateLookup"]
    complete = '    = {"_id": 1, "a": ' + str(list(range(99))) + ', "c": 2}'
    assert printed(capsys, *words)[2:] == [
        'update    shop.plain  {"_id": 1}', "    = c  2", "    - b", "    ~ a  cut to 99 elements", complete,
    ]  # fmt: skip


def test_only_some_fields_and_events_are_shown(
    server: headrace.Server, shop: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = position(shop)
    shop.c.insert_one({"_id": 1, "a": 1, "b": {"c": 2, "d": 3}})
    shop.c.update_one({}, {"$set": {"a": 2, "b.c": 3, "b.d": 4, "e": 5}})
    words = [server.uri, "shop", "--from", begin, "--fields", "b.c, e"]
    assert printed(capsys, *words, "--count", "2") == [
        'insert    shop.c  {"_id": 1}',
        '    + {"b": {"c": 2}}',
        'update    shop.c  {"_id": 1}',
        "    = e    5",
        "    = b.c  3",
    ]
    assert len(printed(capsys, *words, "--filter", '{"operationType": "update"}', "--count", "1")) == 3


def test_json_has_all_of_the_event(server: headrace.Server, shop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    begin = position(shop)
    shop.c.insert_one({"_id": 1, "a": 1})
    (line,) = printed(capsys, "--json", "--count", "1", server.uri, "shop.c", "--from", begin)
    event = json.loads(line)
    assert event["operationType"] == "insert" and event["fullDocument"] == {"_id": 1, "a": 1}


def test_json_and_programs_have_the_fields_that_are_wanted(
    server: headrace.Server, shop: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = position(shop)
    shop.c.insert_one({"_id": 1, "a": 1, "b": {"c": 2, "d": 3}})
    shop.c.update_one({}, {"$set": {"a": 2, "b.c": 3}, "$unset": {"b.d": 1}})
    words = ["--count", "2", server.uri, "shop.c", "--from", begin, "--fields", "b.c"]
    printed(capsys, *words, "--exec", f"cat >> {tmp_path}/out; echo >> {tmp_path}/out")
    for lines in (printed(capsys, *words, "--json"), (tmp_path / "out").read_text("utf-8").splitlines()):
        inserted, updated = map(json.loads, lines)
        assert inserted["fullDocument"] == {"b": {"c": 2}} and inserted["documentKey"] == {"_id": 1}
        description = updated["updateDescription"]
        assert (description["updatedFields"], description["removedFields"]) == ({"b.c": 3}, [])


def test_an_event_of_more_than_16_mb_is_assembled(
    server: headrace.Server, shop: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.create_collection("large", changeStreamPreAndPostImages={"enabled": True})
    shop.large.insert_one({"_id": 1, "text": "a" * LARGE})
    begin = position(shop)
    shop.large.update_one({}, {"$set": {"text": "b" * LARGE}})
    (line,) = printed(capsys, server.uri, "shop", "--from", begin, "--count", "1", "--json")
    event = json.loads(line)
    assert "splitEvent" not in event and len(event["fullDocumentBeforeChange"]["text"]) == LARGE
    assert len(event["updateDescription"]["updatedFields"]["text"]) == LARGE


def test_the_position_is_stored_in_a_file(
    server: headrace.Server, shop: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, begin = tmp_path / "state.json", position(shop)
    shop.c.insert_many([{"_id": number} for number in range(5)])
    words = [server.uri, "shop.c", "--state", str(state), "--json"]
    first = printed(capsys, *words, "--from", begin, "--count", "2")
    assert main(["tail", *words, "--count", "3", "--from", begin]) == 0
    output = capsys.readouterr()
    keys = [json.loads(line)["documentKey"]["_id"] for line in [*first, *output.out.splitlines()]]
    assert keys == [0, 1, 2, 3, 4] and "--from is not used" in output.err
    assert main(["tail", server.uri, "shop.other", "--state", str(state)]) == 1
    assert "is the state of shop.c, not of shop.other" in capsys.readouterr().err
    state.write_text("{}", encoding="utf-8")
    assert main(["tail", *words]) == 1


def test_a_program_gets_each_event_and_a_failure_leaves_it_undone(
    server: headrace.Server, shop: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, begin, out = tmp_path / "state.json", position(shop), tmp_path / "out"
    shop.c.insert_many([{"_id": number} for number in range(3)])
    program = f'cat >> {out}; echo " $HEADRACE_OPERATION_TYPE $HEADRACE_DATABASE.$HEADRACE_COLLECTION" >> {out}'
    failing = f'cat > {tmp_path}/last; ! grep -q \'"documentKey": {{"_id": 1}}\' {tmp_path}/last'
    words = ["tail", server.uri, "shop.c", "--state", str(state), "--from", begin]
    assert main([*words, "--exec", failing]) == 1
    assert "failed with status 1; its event is not done" in capsys.readouterr().err
    assert main([*words, "--exec", program, "--count", "2"]) == 0
    lines = out.read_text("utf-8").splitlines()
    assert [json.loads(line.rpartition("}")[0] + "}")["documentKey"]["_id"] for line in lines] == [1, 2]
    assert all(line.endswith(" insert shop.c") for line in lines)
    assert capsys.readouterr().out == ""


def test_a_collection_that_is_dropped_and_made_anew_is_followed_on(
    server: headrace.Server, shop: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = position(shop)
    shop.c.insert_one({"_id": 1})
    shop.c.drop()
    shop.c.insert_one({"_id": 2})
    lines = printed(capsys, server.uri, "shop.c", "--from", begin, "--count", "4", "--json")
    assert [json.loads(line)["operationType"] for line in lines] == ["insert", "drop", "invalidate", "insert"]


@pytest.mark.long
def test_it_goes_on_when_the_server_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: queue.SimpleQueue[str] = queue.SimpleQueue()
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "write", errors.put)
    monkeypatch.setattr(sys, "stderr", stderr)
    port = free_port()
    with headrace.Server(tmp_path / "data", port=port) as server:
        uri = f"{server.uri}&serverSelectionTimeoutMS=50"
        with pymongo.MongoClient[dict[str, Any]](server.uri) as client:
            client.shop.c.insert_one({"_id": 1})
        with connected(uri) as reader:
            events = Follow(uri, "shop", "c", [], start_of("1h")).events(reader)
            assert next(events)[0]["documentKey"] == {"_id": 1}  # type: ignore[index]
            server.close()
            seen: list[Any] = []

            def follow_one() -> None:
                for event, _ in events:
                    if event is not None:
                        seen.append(event)
                        return

            reading = threading.Thread(target=follow_one)
            reading.start()
            text = errors.get(timeout=60)
            assert "the server cannot be reached" in text and "trying again" in text
            with headrace.Server(tmp_path / "data", port=port) as again, pymongo.MongoClient[Any](again.uri) as writer:
                writer.shop.c.insert_one({"_id": 2})
                reading.join(60)
                assert [event["documentKey"]["_id"] for event in seen] == [2]


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["shop", "--from", "yesterday"], 2, "neither a resume token"),
        (["shop", "--filter", "["], 2, "--filter is not JSON"),
        (["shop", "--filter", "[]"], 2, "--filter is not a JSON object"),
        (["shop", "other"], 2, "too many arguments"),
        (["shop", "--from", "{}"], 2, "--from is not a resume token"),
        (["shop", "--state", "/no/such/folder/state"], 1, "the position cannot be stored in /no/such/folder"),
        (["mongodb://localhost:1/?serverSelectionTimeoutMS=1", "shop"], 4, "the server cannot be reached: localhost:1"),
        (["env:NO_SUCH_VARIABLE", "shop"], 1, "NO_SUCH_VARIABLE"),
    ],
)
def test_what_cannot_be_followed_is_said_in_a_line(
    words: list[str], status: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tail", *words]) == status
    output = capsys.readouterr()
    assert text in output.err and output.err.count("\n") == 1 and output.err.startswith("headrace: ")


def test_a_position_that_is_gone_has_another_status(
    server: headrace.Server, shop: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.c.insert_one({"_id": 1})
    key = encode({"_id": "nobody's"})
    token, _ = make_event_token(int(time.time()) << 32 | 1, 0, bytes(16), "insert", key, None)
    assert main(["tail", server.uri, "shop", "--from", token]) == 5
    assert "error 280" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "options"),
    [
        (None, {}),
        ("earliest", {"earliest": True}),
        ("2026-11-22T10:00:00Z", {"startAtOperationTime": Timestamp(1795341600, 0)}),
        ("2026-11-22T11:00:00+01:00", {"startAtOperationTime": Timestamp(1795341600, 0)}),
        ("2026-11-22 10:00", {"startAtOperationTime": Timestamp(1795341600, 0)}),
        ("1795341600", {"startAtOperationTime": Timestamp(1795341600, 0)}),
        ("826B02C4C3000000012B0229296E04", {"startAfter": {"_data": "826B02C4C3000000012B0229296E04"}}),
        ('{"_data": "82"}', {"startAfter": {"_data": "82"}}),
    ],
)
def test_a_start_is_a_token_or_a_time(word: str | None, options: dict[str, Any]) -> None:
    assert start_of(word) == options


@pytest.mark.parametrize("word", ["soon", "1969-01-01", "2200-01-01", "5y", "0", "4294967296", "9" * 40])
def test_other_starts_are_refused(word: str) -> None:
    with pytest.raises(Failed):
        start_of(word)


def test_so_long_ago_is_counted_from_now() -> None:
    at = start_of("2h")["startAtOperationTime"].time
    assert abs(time.time() - 7200 - at) < 60


def test_what_would_control_a_terminal_is_escaped_and_long_lines_are_cut() -> None:
    event = {
        "operationType": "insert", "ns": {"db": "d", "coll": "c"}, "documentKey": {"_id": "\x9b31m"},
        "fullDocument": {"text": "x" * 500},
    }  # fmt: skip
    head, body = EventLines(Painter(enabled=False), 40).of(event)
    assert head == 'insert    d.c  {"_id": "\\x9b31m"}' and len(body) == 40 and body.endswith("…")
    coloured = list(EventLines(Painter(enabled=True), 40).of(event))
    assert coloured[1].startswith("\x1b[32m") and coloured[1].endswith("\x1b[0m")


def _ends(server: headrace.Server, tmp_path: Path, end: Any, *words: str, **options: Any) -> tuple[int, str]:
    """The exit status of a process that has printed an event, and what its state file has; all cursors are closed."""
    state = tmp_path / "state.json"
    command = [sys.executable, "-m", "headrace", "tail", server.uri, "shop", "--state", str(state), "--json", *words]
    core = server._running
    with (
        pymongo.MongoClient[dict[str, Any]](server.uri) as client,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **options) as process,
    ):
        assert process.stdout is not None
        line = ""
        for key in ("first", "second"):
            until(lambda: any(request.name == "getMore" for request in core.waiting_requests()))
            client.shop.c.insert_one({"_id": key})
            line = process.stdout.readline()
            assert key in line
        until(lambda: any(request.name == "getMore" for request in core.waiting_requests()))
        end(process)
        status = process.wait(60)
        assert len(core.engine.cursors) == 0, "the cursor is closed by the time that the process has ended"
    stored: str = json.loads(state.read_text())["resumeToken"]["_data"]
    assert stored >= json.loads(line)["_id"]["_data"]
    return status, stored


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_closes_the_cursor_and_stores_the_position(
    server: headrace.Server, shop: Any, tmp_path: Path, number: signal.Signals
) -> None:
    def heed() -> None:
        """A shell lets what it runs in the background ignore signals."""
        signal.signal(number, signal.SIG_DFL)

    status, _ = _ends(server, tmp_path, lambda process: process.send_signal(number), preexec_fn=heed)
    assert status == 128 + number


@pytest.mark.process
def test_a_pipe_that_nobody_reads_ends_it_without_a_further_event(
    server: headrace.Server, shop: Any, tmp_path: Path
) -> None:
    status, _ = _ends(server, tmp_path, lambda process: process.stdout.close())
    assert status == 141


@pytest.mark.process
def test_a_hangup_that_is_ignored_stays_so(server: headrace.Server, shop: Any, tmp_path: Path) -> None:
    """As under nohup."""

    def end(process: Any) -> None:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)

    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    status, _ = _ends(server, tmp_path, end, preexec_fn=ignore)
    assert status == 128 + signal.SIGTERM
