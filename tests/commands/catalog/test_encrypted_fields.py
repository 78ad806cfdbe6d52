"""`create` with `encryptedFields`: checked, stored and shown; what is not encrypted is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Int64

from headrace.testing.driven import DrivenServer

KEY = Binary(b"\1" * 16, 4)
TEXT = {"strMinQueryLength": 2, "strMaxQueryLength": 10, "caseSensitive": True, "diacriticSensitive": True}


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        yield server


def field(path: str = "ssn", kind: str | None = "string", queries: Any = None, **more: Any) -> dict[str, Any]:
    made = {"keyId": KEY, "path": path, **more}
    return made | ({} if kind is None else {"bsonType": kind}) | ({} if queries is None else {"queries": queries})


def create(server: DrivenServer, *fields: Any, **more: Any) -> int:
    reply = server.run("t", {"create": "e", "encryptedFields": {"fields": list(fields)}, **more})
    assert isinstance(reply, dict)
    return int(reply.get("code", 0))


def test_the_option_is_stored_and_shown(server: DrivenServer) -> None:
    config = {
        "escCollection": "enxcol_.e.esc", "ecocCollection": "enxcol_.e.ecoc",
        "fields": [field("ssn", "string", {"queryType": "equality", "contention": Int64(4)}), field("a.b", None)],
    }  # fmt: skip
    server.must("t", {"create": "e", "encryptedFields": config})
    (shown,) = server.must("t", {"listCollections": 1})["cursor"]["firstBatch"]
    assert shown["options"] == {"encryptedFields": config}


def test_what_must_be_encrypted_is(server: DrivenServer) -> None:
    assert create(server, field("ssn"), field("a.b", None)) == 0
    for document, code in (
        ({"x": 1}, 0), ({"ssn": Binary(b"\7x", 6), "a": {"b": Binary(b"\7", 6)}}, 0), ({"a": {"c": 1}}, 0),
        ({"ssn": "123"}, 121), ({"ssn": Binary(b"x", 0)}, 121), ({"ssn": None}, 121), ({"a": {"b": 1}}, 121),
    ):  # fmt: skip
        reply = server.run("t", {"insert": "e", "documents": [document]})
        assert (
            isinstance(reply, dict)
            and [error["code"] for error in reply.get("writeErrors", [])] == [code][: bool(code)]
        )
    update = {"q": {"x": 1}, "u": {"$set": {"ssn": "clear"}}}
    reply = server.run("t", {"update": "e", "updates": [update]})
    assert isinstance(reply, dict) and reply["writeErrors"][0]["code"] == 121


REFUSED: list[tuple[Any, int]] = [
    (field(""), 6316402), (field("_id"), 6316403), (field("_id.x"), 6316403),
    ({"path": "a"}, 40414), ({"keyId": KEY}, 40414), ({"keyId": "x", "path": "a"}, 14),
    ({"keyId": Binary(b"x"), "path": "a"}, 14), ({"keyId": KEY, "path": 1}, 14), (field(nope=1), 40415), (1, 14),
    (field(queries=1), 14), (field(queries=[]), 9783412), (field(queries=[1]), 14), (field(queries={}), 40414),
    (field(queries={"queryType": "x"}), 2), (field(queries={"queryType": 1}), 14),
    (field(queries={"queryType": "equality", "nope": 1}), 40415),
    *((field(kind=kind, queries={"queryType": "equality"}), 6338406) for kind in ("double", "object", "array")),
    (field(kind="string", queries={"queryType": "range"}), 6775201),
    (field(kind="int", queries={"queryType": "range", "min": 5, "max": 5}), 6720005),
    (field(kind="int", queries={"queryType": "range", "min": "x", "max": 5}), 7018200),
    (field(kind="long", queries={"queryType": "range", "min": 1, "max": Int64(5)}), 7018200),
    (field(kind="int", queries={"queryType": "range", "trimFactor": 32}), 8574000),
    (field(kind="int", queries={"queryType": "prefixPreview", **TEXT}), 9783400),
    *((field(queries={"queryType": "suffixPreview", **{k: v for k, v in TEXT.items() if k != name}}), code)
      for name, code in zip(TEXT, (9783402, 9783403, 9783404, 9783405), strict=True)),
    (field(queries={"queryType": "suffixPreview", **TEXT, "strMinQueryLength": 11}), 9783406),
    (field(queries=[{"queryType": "equality"}] * 3), 9783413),
    (field(queries=[{"queryType": "equality"}, {"queryType": "suffixPreview", **TEXT}]), 9783414),
]  # fmt: skip


@pytest.mark.parametrize(("given", "code"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_wrong_with_a_field_is_refused(server: DrivenServer, given: Any, code: int) -> None:
    assert create(server, given) == code
    assert server.must("t", {"listCollections": 1})["cursor"]["firstBatch"] == []


def test_paths_are_not_within_one_another(server: DrivenServer) -> None:
    for paths in (("a", "a"), ("a", "a.b"), ("a.b", "a")):
        assert create(server, *(field(path) for path in paths)) == 6338402
    assert create(server, field("ab"), field("a")) == 0


def test_other_kinds_of_collections_cannot_be_encrypted(server: DrivenServer) -> None:
    assert create(server, field(), viewOn="c") == 6346401
    assert create(server, field(), capped=True, size=4096) == 6367301
    with DrivenServer(oplog=False) as standalone:
        assert create(standalone, field()) == 6346402


def test_the_option_is_a_document_with_fields(server: DrivenServer) -> None:
    for value, code in (
        (1, 14),
        ([], 14),
        ("x", 14),
        ({}, 40414),
        ({"fields": 1}, 14),
        ({"fields": [], "x": 1}, 40415),
    ):
        assert server.run("t", {"create": "e", "encryptedFields": value})["code"] == code
    for queries in (
        [{"queryType": "prefixPreview", **TEXT}, {"queryType": "suffixPreview", **TEXT}],
        {"queryType": "equality", "contention": 0},
    ):
        assert create(server, field(queries=queries)) == 0
        server.must("t", {"drop": "e"})
