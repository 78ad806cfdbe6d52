"""Ends of a stream, by scope, and how it continues after them (the reference, section 1.4)."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.values.token import decode_token
from tests.streams.serving import Served, Stream, kinds


@pytest.fixture
def coll(at: Served) -> str:
    """A collection with one document."""
    name = at.name()
    at.insert(name, {"_id": 0})
    return name


def ids(events: list[dict[str, Any]]) -> list[Any]:
    return [event["documentKey"]["_id"] for event in events]


SETUPS = ("drop", "dropDatabase", "rename from", "rename onto", "rename to")
ENDS: dict[str, dict[str, list[str]]] = {
    "drop": {"C": ["drop", "invalidate"], "D": ["drop"], "A": ["drop"]},
    "dropDatabase": {
        "C": ["drop", "invalidate"], "D": ["drop", "dropDatabase", "invalidate"], "A": ["drop", "dropDatabase"],
    },
    "rename from": {"C": ["rename", "invalidate"], "D": ["rename"], "A": ["rename"]},
    "rename onto": {"C": ["rename", "invalidate"], "D": ["rename"], "A": ["rename"]},
    "rename to": {"C": ["rename", "invalidate"], "D": ["rename"], "A": ["rename"]},
}  # fmt: skip


def end(at: Served, db: str, how: str) -> None:
    """Do what may end a stream on `db` or on `db.c`."""
    if how == "drop":
        at.must({"drop": "c"}, db)
    elif how == "dropDatabase":
        at.must({"dropDatabase": 1}, db)
    elif how == "rename from":
        at.must({"renameCollection": f"{db}.c", "to": f"{db}.e"}, "admin")
    else:
        at.must({"renameCollection": f"{db}.other", "to": f"{db}.c", "dropTarget": True}, "admin")


def prepared(at: Served, how: str) -> str:
    """A database in which that can be done."""
    db = at.name()
    if how != "rename to":
        at.must({"create": "c"}, db)
    if how in ("rename onto", "rename to"):
        at.must({"create": "other"}, db)
    return db


def at_scope(at: Served, scope: str, db: str, *stages: dict[str, Any], **options: Any) -> Stream:
    if scope == "A":
        return at.watch(1, *stages, db="admin", **options)
    return at.watch("c" if scope == "C" else 1, *stages, db=db, **options)


@pytest.mark.parametrize("scope", "CDA")
@pytest.mark.parametrize("how", SETUPS)
def test_what_ends_a_stream_is_reported_and_then_that_it_has_ended(at: Served, how: str, scope: str) -> None:
    db = prepared(at, how)
    stream = at_scope(at, scope, db)
    end(at, db, how)
    reply = stream.more()
    events = reply["cursor"]["nextBatch"]
    assert kinds(events) == ENDS[how][scope]
    if "invalidate" not in kinds(events):
        assert stream.id != 0
        return
    last, invalidate = events[-2:]
    assert list(invalidate) == ["_id", "operationType", "clusterTime", "wallTime"]
    assert (last["clusterTime"], last["wallTime"]) == (invalidate["clusterTime"], invalidate["wallTime"])
    before, after = decode_token(last["_id"]), decode_token(invalidate["_id"])
    assert (before.from_invalidate, after.from_invalidate) == (False, True)
    assert (before.uuid, before.event_identifier) == (after.uuid, after.event_identifier)
    assert reply["cursor"]["postBatchResumeToken"] == invalidate["_id"]
    assert reply["cursor"]["id"] == 0 and reply["cursor"]["invalidated"] is True


@pytest.mark.parametrize(
    ("how", "scope"), [(how, scope) for how in SETUPS for scope in "CD" if "invalidate" in ENDS[how][scope]]
)
def test_after_the_end_only_start_after_goes_on(at: Served, how: str, scope: str) -> None:
    db = prepared(at, how)
    start = at_scope(at, scope, db).token
    end(at, db, how)
    last, invalidate = at_scope(at, scope, db, resumeAfter=start).read()[-2:]
    at.insert("c", {"_id": "later"}, db=db)
    code, message = at.fails(at.opening("c" if scope == "C" else 1, resumeAfter=invalidate["_id"]), db)
    assert code == 260 and "not allowed from an invalidate notification" in message
    assert ids(at_scope(at, scope, db, startAfter=invalidate["_id"]).read()) == ["later"]
    for option in ("resumeAfter", "startAfter"):
        again = at_scope(at, scope, db, **{option: last["_id"]})
        assert again.read() == [invalidate] and again.id == 0


@pytest.mark.parametrize(
    "stage", [{"$match": {"operationType": "insert"}}, {"$match": {"a": {"$exists": True}}}], ids=str
)
def test_an_end_that_is_filtered_away_ends_the_stream_all_the_same(
    at: Served, coll: str, stage: dict[str, Any]
) -> None:
    stream = at.watch(coll, stage)
    at.must({"drop": coll})
    reply = stream.more()
    assert reply["cursor"]["nextBatch"] == [] and reply["cursor"]["id"] == 0
    assert decode_token(reply["cursor"]["postBatchResumeToken"]).from_invalidate
    onwards = at.watch(coll, startAfter=stream.token)
    at.insert(coll, {"_id": 1})
    assert ids(onwards.read()) == [1]


def test_a_stream_that_starts_before_the_end_is_closed_by_its_first_batch(at: Served, coll: str) -> None:
    start = at.watch(coll).token
    at.must({"drop": coll})
    stream = at.watch(coll, resumeAfter=start)
    assert kinds(stream.first) == ["drop", "invalidate"] and stream.id == 0
    assert stream.token == stream.first[-1]["_id"]


def test_a_collection_made_again_has_new_streams(at: Served, coll: str) -> None:
    start = at.watch(coll).token
    at.must({"drop": coll})
    at.insert(coll, {"_id": 1})
    stream = at.watch(coll)
    at.insert(coll, {"_id": 2})
    assert ids(stream.read()) == [2]
    assert kinds(at.watch(coll, resumeAfter=start).read()) == ["drop", "invalidate"]


def test_a_stream_may_wait_for_a_collection_and_a_database_that_are_not_there(at: Served) -> None:
    db = at.name()
    streams = [at.watch("c", db=db), at.watch(1, db=db)]
    at.insert("c", {"_id": 1}, db=db)
    assert [ids(stream.read()) for stream in streams] == [[1], [1]]
