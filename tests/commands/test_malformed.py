"""A document that no reader could decode is not stored: it would stop every read and every stream that meets it."""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack
from typing import Any

import pytest
from bson import Int64

from headrace.dispatch.request import Request
from headrace.testing.driven import DrivenServer
from headrace.values.bson import decode, encode


def document(body: bytes) -> bytes:
    return pack("<i", len(body) + 5) + body + b"\0"


def nested(levels: int) -> bytes:
    inner = document(b"")
    for _ in range(levels):
        inner = document(b"\x03a\0" + inner)
    return inner


BAD = {
    "a type that is none": document(b"\x03a\0" + document(b"\x55x\0")),
    "text that is not UTF-8": document(b"\x02s\0\x03\0\0\0\xff\xfe\0"),
    "a name that is not UTF-8": document(b"\x10\xff\0\x01\0\0\0"),
    "a length beyond the end": document(b"\x03a\0" + document(b"\x02s\0\x50\0\0\0ab\0")),
    "a length that cuts a value": document(b"\x03a\0" + pack("<i", 6) + b"\x10\0"),
    "a boolean of seven": document(b"\x08b\0\x07"),
    "far too deep": nested(5000),
}


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("d", {"create": "c"})
        yield server


def send(server: DrivenServer, body: dict[str, Any], database: str, field: str, raw: list[bytes]) -> dict[str, Any]:
    """The reply to a command whose documents come in a section of their own, as drivers send them."""
    client = server.request("d", {"ping": 1}).client
    request = Request(next(iter(body)), database, encode({**body, "$db": database}), {field: raw}, client)
    (answer,) = server._commit([(server.engine.command(request), request)])
    assert isinstance(answer, bytes)
    return decode(answer)


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_malformed_document_is_refused_and_nothing_of_its_command_is_stored(server: DrivenServer, bad: bytes) -> None:
    cursor = server.must("d", {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}})["cursor"]["id"]
    good = encode({"_id": 1})
    assert send(server, {"insert": "c"}, "d", "documents", [good, bad])["code"] == 22
    operations = [document(b"\x10insert\0\0\0\0\0\x03document\0" + item) for item in (good, bad)]
    body = {"bulkWrite": 1, "nsInfo": [{"ns": "d.c"}]}
    assert send(server, body, "admin", "ops", operations)["code"] == 22
    server.must("d", {"insert": "c", "documents": [{"_id": 2}]})
    assert server.must("d", {"find": "c", "filter": {"x": None}})["cursor"]["firstBatch"] == [{"_id": 2}]
    events = server.must("d", {"getMore": Int64(cursor), "collection": "c"})["cursor"]["nextBatch"]
    assert [event["documentKey"]["_id"] for event in events] == [2]


def test_a_document_nests_as_deep_as_mongodb_lets_it(server: DrivenServer) -> None:
    assert send(server, {"insert": "c"}, "d", "documents", [nested(179)])["n"] == 1
    assert send(server, {"insert": "c"}, "d", "documents", [nested(180)])["code"] == 15
    assert send(server, {"insert": "c"}, "d", "documents", [encode({"a": [3, 4] * 200})])["n"] == 1
    assert server.must("d", {"count": "c"})["n"] == 2


def test_many_documents_are_checked_to_the_last(server: DrivenServer) -> None:
    large = [encode({"_id": number, "text": "x" * 100_000}) for number in range(7)]
    assert send(server, {"insert": "c"}, "d", "documents", [*large, BAD["a boolean of seven"]])["code"] == 22
    assert send(server, {"insert": "c"}, "d", "documents", large)["n"] == 7
