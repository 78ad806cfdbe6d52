"""`headraceChanges`: ranges cut by rows, bytes and tokens; stateless; what is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace.dispatch.wait import Wait
from headrace.testing.driven import DrivenServer
from headrace.values.arrow.batches import batches_of
from headrace.values.arrow.event_columns import COLUMNS
from headrace.values.bson import decode


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as driven:
        yield driven


def start_of(server: DrivenServer) -> dict[str, Any]:
    reply = server.must("d", {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}})
    token: dict[str, Any] = reply["cursor"]["postBatchResumeToken"]
    return token


def insert(server: DrivenServer, *keys: int, text: str = "") -> None:
    for key in keys:
        server.must("d", {"insert": "c", "documents": [{"_id": key, "text": text}]})


def changes(server: DrivenServer, after: dict[str, Any], **more: Any) -> dict[str, Any]:
    return server.must("d", {"headraceChanges": "c", "after": after, "until": None, **more})


def keys(reply: dict[str, Any]) -> list[int]:
    table = pa.Table.from_batches(batches_of(reply["arrow"]))
    return [decode(key)["_id"] for key in table["documentKey"].to_pylist()]


def test_a_range_comes_in_pieces_that_follow_one_another(server: DrivenServer) -> None:
    start = start_of(server)
    insert(server, *range(7))
    after, rows_read, dones = start, [], []
    while not dones or not dones[-1]:
        reply = changes(server, after, rowsMax=3)
        rows_read.append(keys(reply))
        dones.append(reply["done"])
        after = reply["token"]
    assert rows_read[:3] == [[0, 1, 2], [3, 4, 5], [6]]
    assert batches_of(reply["arrow"])[0].schema.names == list(COLUMNS)
    assert keys(changes(server, start, rowsMax=3)) == [0, 1, 2]  # nothing is kept between calls


def test_a_range_ends_at_its_token_also_when_more_came_since(server: DrivenServer) -> None:
    start = start_of(server)
    insert(server, 1, 2)
    end = changes(server, start)["token"]
    insert(server, 3)
    reply = changes(server, start, until=end)
    assert (keys(reply), reply["done"], reply["token"]["_data"]) == ([1, 2], True, end["_data"])
    assert keys(changes(server, end)) == [3]


def test_bytes_bound_a_reply_but_one_event_always_comes(server: DrivenServer) -> None:
    start = start_of(server)
    insert(server, 1, 2, 3, text="x" * 1000)
    assert keys(changes(server, start, bytesMax=3000)) == [1, 2]
    reply = changes(server, start, bytesMax=1)
    assert (keys(reply), reply["done"], reply["idle"]) == ([1], False, False)
    assert keys(changes(server, reply["token"])) == [2, 3]


def test_an_invalidate_closes_and_its_token_goes_on_behind_it(server: DrivenServer) -> None:
    start = start_of(server)
    insert(server, 1)
    server.must("d", {"drop": "c"})
    insert(server, 2)
    reply = changes(server, start, columns=["operationType"])
    assert reply["closed"]
    assert batches_of(reply["arrow"])[0].to_pydict() == {"operationType": ["insert", "drop", "invalidate"]}
    assert keys(changes(server, reply["token"])) == [2]


def test_without_columns_rows_are_counted(server: DrivenServer) -> None:
    start = start_of(server)
    insert(server, 1, 2)
    reply = changes(server, start, columns=[])
    assert (reply["arrow"], reply["rows"]) == (b"", 2)


def test_it_waits_when_asked_to_and_there_is_nothing(server: DrivenServer) -> None:
    body = {"headraceChanges": "c", "after": start_of(server), "until": None, "waitMs": 50}
    assert isinstance(server.run("d", body), Wait)
    reply = server.run("d", body, time_is_up=True)
    assert isinstance(reply, dict) and (reply["rows"], reply["done"]) == (0, True)
    insert(server, 1)
    reply = server.run("d", body)
    assert isinstance(reply, dict) and keys(reply) == [1]


def test_the_pipeline_and_the_options_are_those_of_a_stream(server: DrivenServer) -> None:
    start = start_of(server)
    insert(server, 1, 2, 3)
    pipeline = [{"$match": {"documentKey._id": {"$gt": 1}}}]
    assert keys(changes(server, start, pipeline=pipeline)) == [2, 3]
    reply = server.run("d", {"headraceChanges": "c", "after": start, "stream": {"fullDocument": "nonsense"}})
    assert isinstance(reply, dict) and reply["ok"] == 0.0


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"after": None}, 40414),
        ({"columns": ["nothing"]}, 2),
        ({"columns": ["token", "token"]}, 2),
        ({"pipeline": {}}, 14),
        ({"rowsMax": 0}, 51024),
        ({"slice": 2, "slices": 2}, 51024),
        ({"stream": {"resumeAfter": {}}}, 72),
        ({"until": {"data": 1}}, 14),
        ({"upTo": 1}, 40415),
    ],
)
def test_what_is_wrong_is_refused(server: DrivenServer, wrong: dict[str, Any], code: int) -> None:
    reply = server.run("d", {"headraceChanges": "c", "after": start_of(server)} | wrong)
    assert isinstance(reply, dict) and reply["code"] == code


def test_without_pyarrow_the_error_says_what_to_install(server: DrivenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headrace.values.arrow.batches", None)
    reply = server.run("d", {"headraceChanges": "c", "after": start_of(server)})
    assert isinstance(reply, dict) and reply["code"] == 115 and "headrace[arrow]" in reply["errmsg"]
