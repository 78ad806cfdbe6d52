"""The validator of a collection: which writes it refuses, at each level, and that no stage bypasses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import OperationFailure

import headrace
from headrace.execution.writes import validation
from headrace.log_lines import RepeatedLine

RULE = {"n": {"$type": "int"}}
VALID = {"_id": 9, "n": 1}


@pytest.fixture(scope="module")
def server() -> Iterator[headrace.Server]:
    with headrace.Server() as server:
        yield server


@pytest.fixture
def db(server: headrace.Server) -> Iterator[Database[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](server.uri) as client:
        client.drop_database("d")
        yield client.d


def code(database: Database[dict[str, Any]], **command: Any) -> int | None:
    """The code of a command's error, or of its first write error; None if it succeeds."""
    try:
        reply = database.command(command)
    except OperationFailure as error:
        return error.code
    errors = reply.get("writeErrors")
    return errors[0]["code"] if errors else None


def update(_id: int, value: Any, **fields: Any) -> dict[str, Any]:
    return {"update": "c", "updates": [{"q": {"_id": _id}, "u": {"$set": {"n": value}}}], **fields}


def test_a_moderate_validator_lets_invalid_documents_be_changed(db: Database[dict[str, Any]]) -> None:
    db.c.insert_many([{"_id": 1, "n": "old"}, {"_id": 2, "n": 5}])
    db.command({"collMod": "c", "validator": RULE, "validationLevel": "moderate"})
    assert code(db, **update(1, "new")) is None
    assert code(db, **update(2, "new")) == 121
    assert code(db, findAndModify="c", query={"_id": 1}, update={"m": 1}) is None
    assert code(db, findAndModify="c", query={"_id": 2}, update={"m": 1}) == 121
    assert code(db, insert="c", documents=[{"n": "x"}]) == 121
    db.command({"collMod": "c", "validationLevel": "strict"})
    assert code(db, **update(1, "newer")) == 121
    assert code(db, **update(1, "newer", bypassDocumentValidation=True)) is None


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A function that returns the log lines about refused documents since the fixture began."""
    monkeypatch.setattr(validation, "_REFUSED", RepeatedLine())
    return lambda: [record.message for record in caplog.records if "the validator" in record.message]


@pytest.mark.parametrize(
    ("action", "answered", "logged"), [("error", 121, 0), ("errorAndLog", 121, 1), ("warn", None, 1)]
)
def test_refused_documents_can_be_logged(
    db: Database[dict[str, Any]], lines: Callable[[], list[str]], action: str, answered: int | None, logged: int
) -> None:
    assert code(db, create="c", validator=RULE, validationAction=action) is None
    assert code(db, insert="c", documents=[VALID]) is None
    assert lines() == []
    assert code(db, insert="c", documents=[{"_id": "x\ny", "n": "x"}]) == answered
    expected = 'd.c: document "x\\ny" does not match the validator'
    assert lines() == [expected] * logged
    for _ in range(3):  # not logged again within ten seconds
        assert code(db, **update(9, "x")) == answered
    assert lines() == [expected] * logged
    assert code(db, **update(9, "y", bypassDocumentValidation=True)) is None


@pytest.mark.parametrize("level", ["moderate", "off"])
def test_a_change_that_the_level_allows_is_not_logged(
    db: Database[dict[str, Any]], lines: Callable[[], list[str]], level: str
) -> None:
    db.c.insert_one({"_id": 1, "n": "old"})
    db.command({"collMod": "c", "validator": RULE, "validationLevel": level, "validationAction": "warn"})
    assert code(db, **update(1, "new")) is None
    assert lines() == []


@pytest.mark.parametrize("stage", [{"$out": "c"}, {"$merge": "c"}, {"$merge": {"into": "c", "whenMatched": "replace"}}])
def test_stages_that_write_are_validated(db: Database[dict[str, Any]], stage: dict[str, Any]) -> None:
    db.command({"create": "c", "validator": RULE})
    db.c.insert_one(VALID)
    db.s.insert_many([{"_id": 9, "n": "bad"}, {"_id": 1, "n": "bad"}])
    assert code(db, aggregate="s", pipeline=[stage], cursor={}) == 121
    assert list(db.c.find()) == [VALID]
    assert code(db, aggregate="s", pipeline=[stage], cursor={}, bypassDocumentValidation=True) is None
    assert list(db.c.find({}, sort=["_id"])) == [{"_id": 1, "n": "bad"}, {"_id": 9, "n": "bad"}]
    assert db.c.options()["validator"] == RULE


@pytest.mark.parametrize(
    ("options", "expected", "left"),
    [
        ({"whenMatched": "fail"}, 11000, [1, 2, 3]),
        ({"whenNotMatched": "fail"}, 13113, [2]),
        ({"whenMatched": [{"$set": {"_id": 7}}]}, 66, [1, 2, 3]),
        ({"on": "k"}, 51183, [2]),
    ],
)
def test_a_merge_that_fails_writes_the_other_documents(
    db: Database[dict[str, Any]], options: dict[str, Any], expected: int, left: list[int]
) -> None:
    db.c.insert_one({"_id": 2, "n": 0})
    db.s.insert_many([{"_id": number, "n": 1} for number in (1, 2, 3)])
    assert code(db, aggregate="s", pipeline=[{"$merge": {"into": "c", **options}}], cursor={}) == expected
    assert sorted(document["_id"] for document in db.c.find()) == left


@pytest.mark.parametrize("action", ["error", "warn"])
def test_an_expression_that_fails_refuses_the_document(db: Database[dict[str, Any]], action: str) -> None:
    rule = {"$expr": {"$gt": [{"$divide": [1, "$z"]}, 0]}}
    db.command({"create": "c", "validator": {"$and": [rule, {"z": {"$exists": True}}]}, "validationAction": action})
    reply = db.command({"insert": "c", "documents": [{"_id": 1, "z": 0}, {"_id": 2, "z": 1}], "ordered": False})
    if action == "warn":
        assert reply["n"] == 2 and "writeErrors" not in reply
        assert db.command("validate", "c")["nNonCompliantDocuments"] == 1
        return
    [error] = reply["writeErrors"]
    assert (error["index"], error["code"]) == (0, 121)
    [blamed] = error["errInfo"]["details"]["clausesNotSatisfied"]
    assert blamed["details"] == {
        "operatorName": "$expr", "specifiedAs": rule, "reason": "failed to evaluate aggregation expression",
        "details": {"code": 16608, "codeName": "Location16608", "errmsg": "can't $divide by zero"},
    }  # fmt: skip
