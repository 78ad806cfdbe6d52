"""Messages of errors that a document causes begin with the command that ran. Those of a mistaken command do not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import Int64

from headrace.testing.driven import DrivenServer

SIZE: Any = {"$size": "$a"}
CAUSE = "The argument to $size must be an array, but was of type: int"


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer(enable_test_commands=True) as server:
        server.must("t", {"create": "c", "validator": {"a": {"$ne": "bad"}}})
        server.must("t", {"createIndexes": "c", "indexes": [{"key": {"u": 1}, "name": "u_1", "unique": True}]})
        documents = [{"_id": number, "a": [] if number < 3 else 5, "u": number} for number in range(5)]
        server.must("t", {"insert": "c", "documents": documents})
        yield server


@pytest.mark.parametrize(
    ("body", "start"),
    [
        ({"find": "c", "filter": {"$expr": SIZE}}, "Executor error during find command: t.c :: caused by :: "),
        ({"find": "c", "projection": {"x": SIZE}}, "Executor error during find command: t.c :: caused by :: "),
        (
            {"aggregate": "c", "pipeline": [{"$group": {"_id": SIZE}}], "cursor": {}},
            "Executor error during aggregate command on namespace: t.c :: caused by :: ",
        ),
        (
            {"findAndModify": "c", "query": {"_id": 4}, "update": [{"$set": {"x": SIZE}}]},
            "Plan executor error during findAndModify :: caused by :: ",
        ),
    ],
)
def test_a_command_is_named_before_what_a_document_causes(
    server: DrivenServer, body: dict[str, Any], start: str
) -> None:
    reply = server.run("t", body)
    assert isinstance(reply, dict)
    assert (reply["code"], reply["codeName"], reply["errmsg"]) == (17124, "Location17124", start + CAUSE)


def test_a_getmore_is_named_and_its_cursor_is_closed(server: DrivenServer) -> None:
    opened = server.must("t", {"find": "c", "projection": {"x": SIZE}, "batchSize": 2})["cursor"]["id"]
    more = {"getMore": Int64(opened), "collection": "c"}
    failed = server.run("t", more)
    assert isinstance(failed, dict)
    assert (failed["code"], failed["errmsg"]) == (17124, "Executor error during getMore :: caused by :: " + CAUSE)
    assert server.run("t", more)["code"] == 43  # type: ignore[index, call-overload]


@pytest.mark.parametrize(
    ("command", "statements", "message"),
    [
        ("update", [{"q": {"_id": 4}, "u": [{"$set": {"x": SIZE}}]}], CAUSE),
        ("update", [{"q": {"_id": 4}, "u": {"$set": {"a": "bad"}}}], "Document failed validation"),
        ("update", [{"q": {"_id": 4}, "u": {"$set": {"u": 1}}}], "E11000 duplicate key error collection: t.c "
         "index: u_1 dup key: { u: 1 }"),
        ("delete", [{"q": {"$expr": SIZE, "_id": {"$gt": 3}}, "limit": 1}], CAUSE),
    ],
)  # fmt: skip
def test_a_statement_is_named(server: DrivenServer, command: str, statements: list[Any], message: str) -> None:
    reply = server.run("t", {command: "c", f"{command}s": statements})
    (failed,) = reply["writeErrors"]  # type: ignore[index, call-overload]
    assert failed["errmsg"] == f"Plan executor error during {command} :: caused by :: {message}"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"find": "c", "filter": {"$nope": 1}}, "unknown top level operator: $nope. If you have a field name that "
         "starts with a '$' symbol, consider using $getField or $setField."),
        ({"find": "c", "sort": {"$natural": 2}}, "$natural sort cannot be set to a value other than -1 or 1."),
        ({"find": "c", "sort": {"$natural": 1, "a": 1}}, "$natural sort cannot be set to a value other than -1 or 1."),
        ({"find": "c", "sort": {"$natural": 1}, "hint": {"$natural": -1}}, "$natural hint must be in the same "
         "direction as $natural sort order"),
        ({"find": "c", "sort": {"$natural": 1}, "hint": "u_1"}, "index hint not allowed with $natural sort order"),
        ({"aggregate": "c", "pipeline": [{"$project": {"x": {"$nope": 1}}}], "cursor": {}}, "Invalid $project :: "
         "caused by :: Unknown expression $nope"),
        ({"aggregate": "c", "pipeline": [{"$set": {"x": {"$size": 1}}}], "cursor": {}}, "Failed to optimize pipeline "
         ":: caused by :: The argument to $size must be an array, but was of type: int"),
        ({"getMore": Int64(7), "collection": ""}, "Collection names cannot be empty"),
        ({"dropIndexes": "c", "index": [1]}, "BSON field 'dropIndexes.index' is the wrong type 'int', expected types "
         "'[string]'"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_command_is_not(server: DrivenServer, body: dict[str, Any], message: str) -> None:
    reply = server.run("t", body)
    assert isinstance(reply, dict) and reply["errmsg"] == message


def test_a_mistake_in_an_update_is_not(server: DrivenServer) -> None:
    reply = server.run("t", {"update": "c", "updates": [{"q": {}, "u": {"$inc": {"u": "x"}}}]})
    (failed,) = reply["writeErrors"]  # type: ignore[index, call-overload]
    assert failed["errmsg"] == 'Cannot increment with non-numeric argument: {u: "x"}'
