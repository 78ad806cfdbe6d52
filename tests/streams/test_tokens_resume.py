"""Where a stream stands and where it can go on: resume tokens end to end (the reference, sections 2.2 and 2.5)."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Binary, Int64, Timestamp

from headrace.values.bson import encode
from headrace.values.position import from_timestamp
from headrace.values.token import decode_token, high_water_mark, make_event_token
from tests.streams.serving import Served, Stream, kinds, serving

BEHIND = {"$match": {"operationType": "nothing"}}


@pytest.fixture
def coll(at: Served) -> str:
    """A collection with one document."""
    name = at.name()
    at.insert(name, {"_id": 0})
    return name


def mark(time: Timestamp | int) -> dict[str, str]:
    return {"_data": high_water_mark(time if type(time) is int else from_timestamp(time))}  # type: ignore[arg-type]


def ids(events: list[dict[str, Any]]) -> list[Any]:
    return [event["documentKey"]["_id"] for event in events]


# The postBatchResumeToken.


def test_a_new_stream_stands_one_tick_behind_the_last_commit(at: Served, coll: str) -> None:
    assert at.watch(coll).token == mark(from_timestamp(at.now()) + 1)


def test_a_stream_from_a_time_stands_there(at: Served, coll: str) -> None:
    future = Timestamp(at.now().time + 1000, 7)
    assert at.watch(coll, startAtOperationTime=future).token == mark(future)
    body = at.opening(coll, startAtOperationTime=Timestamp(5, 6))
    cursor = at.must({**body, "cursor": {"batchSize": 0}})["cursor"]
    assert cursor["postBatchResumeToken"] == mark(Timestamp(5, 6)) and cursor["firstBatch"] == []


@pytest.mark.parametrize("option", ["resumeAfter", "startAfter"])
def test_a_resumed_stream_stands_at_its_clients_token(at: Served, coll: str, option: str) -> None:
    stream = at.watch(coll)
    at.insert(coll, {"_id": 1})
    (event,) = stream.read()
    for token in (event["_id"], stream.token):
        options: dict[str, Any] = {option: token}
        assert at.watch(coll, **options).token == token


def test_the_token_of_a_batch_is_its_last_events(at: Served, coll: str) -> None:
    stream = at.watch(coll)
    at.insert(coll, *[{"_id": number} for number in range(1, 6)])
    for size in (2, 2, 1):
        batch = stream.more(batchSize=size)["cursor"]["nextBatch"]
        assert len(batch) == size and stream.token == batch[-1]["_id"]
    stream.more()
    assert stream.token == batch[-1]["_id"]


SCOPES: dict[str, tuple[Any, str]] = {"collection": ("C", "t"), "database": (1, "t"), "everything": (1, "admin")}
QUIET: dict[str, tuple[str, bool, list[dict[str, Any]]]] = {
    f"{scope}, {what}": (scope, elsewhere, stages)
    for scope in SCOPES
    for what, elsewhere, stages in (("its events filtered away", False, [BEHIND]), ("written elsewhere", True, []))
    if not (elsewhere and scope == "everything")
}


@pytest.mark.parametrize("row", QUIET)
def test_a_quiet_stream_moves_on_with_the_oplog(at: Served, coll: str, row: str) -> None:
    scope, elsewhere, stages = QUIET[row]
    where, db = SCOPES[scope]
    stream = at.watch(coll if where == "C" else where, *stages, db=db)
    last = stream.token
    for number in range(1, 4):
        at.insert(coll, {"_id": number}, db="other" if elsewhere else "t")
        assert stream.read() == []
        assert stream.token == mark(at.now())
        assert last["_data"] <= stream.token["_data"] and (number == 1 or last != stream.token)
        last = stream.token
        stream.more()
        assert stream.token == last


def test_an_event_and_then_something_else_is_a_mark_at_the_latter(at: Served, coll: str) -> None:
    stream = at.watch(coll)
    at.insert(coll, {"_id": 1})
    at.insert("elsewhere", {"x": 1})
    assert ids(stream.read()) == [1] and stream.token == mark(at.now())


def test_an_idle_oplog_gets_an_entry_every_ten_seconds_so_that_tokens_move_on(at: Served, coll: str) -> None:
    stream = at.watch(coll)
    at.tick()
    stream.more()
    before, time = stream.token, at.now()
    at.clock.advance(9_999)
    at.tick()
    stream.more()
    assert (stream.token, at.now()) == (before, time)
    for _ in range(3):
        at.clock.advance(10_000)
        at.tick()
        at.tick()
        entry = at.last_entry()
        assert (entry["op"], entry["ns"], entry["o"]) == ("n", "", {"msg": "periodic noop"})
        assert from_timestamp(entry["ts"]) > from_timestamp(time)
        time = entry["ts"]
        stream.more()
        assert stream.token == mark(time)
    at.insert(coll, {"_id": 1})
    assert ids(at.watch(coll, resumeAfter=before).read()) == [1]


def test_tokens_never_go_back_and_events_are_sorted_by_them(at: Served, coll: str) -> None:
    stream = at.watch(coll)
    seen, events = [stream.token["_data"]], []
    for number in range(1, 30):
        at.insert(coll if number % 3 else "elsewhere", *[{"n": number}] * (number % 4 + 1))
        if number % 2:
            events += stream.more(batchSize=2)["cursor"]["nextBatch"]
            seen.append(stream.token["_data"])
    assert seen == sorted(seen)
    tokens = [event["_id"]["_data"] for event in [*events, *stream.read()]]
    assert tokens == sorted(set(tokens))


def test_a_mark_hands_out_what_happened_at_its_time(at: Served, coll: str) -> None:
    at.insert(coll, {"_id": 1})
    time = at.now()
    assert ids(at.watch(coll, resumeAfter=mark(time)).read()) == [1]
    assert ids(at.watch(coll, startAtOperationTime=time).read()) == [1]
    after = from_timestamp(time) + 1
    assert at.watch(coll, resumeAfter=mark(after)).read() == []


def test_the_first_batch_holds_what_is_there_and_at_most_101(at: Served, coll: str) -> None:
    start = at.watch(coll).token
    at.insert(coll, *[{"_id": number} for number in range(1, 151)])
    stream = at.watch(coll, resumeAfter=start)
    assert len(stream.first) == 101 and stream.token == stream.first[-1]["_id"]
    assert ids(stream.read()) == list(range(1, 151))


@pytest.mark.parametrize("time", [Timestamp(0, 0), Timestamp(0, 1), Timestamp(1, 0)], ids=str)
def test_an_oplog_that_was_never_cut_has_every_time(at: Served, coll: str, time: Timestamp) -> None:
    assert ids(at.watch(coll, {"$match": {"operationType": "insert"}}, startAtOperationTime=time).read()) == [0]
    assert ids(at.watch(coll, {"$match": {"operationType": "insert"}}, resumeAfter=mark(time)).read()) == [0]


def test_a_time_to_come_is_waited_for(at: Served, coll: str) -> None:
    future = Timestamp(at.now().time + 50, 1)
    stream = at.watch(coll, startAtOperationTime=future)
    at.insert(coll, {"_id": 1})
    assert stream.read() == [] and stream.token == mark(future)
    at.clock.advance(60_000)
    at.insert(coll, {"_id": 2})
    assert ids(stream.read()) == [2]


# Tokens that are none, and tokens that are not quite as they were.

UUID = bytes(range(16))
KEY = encode({"_id": 1})
GOOD = make_event_token(5 << 32 | 1, 0, UUID, "insert", KEY, None)[0]
HEAD = "8200000005000000012B04"
"""clusterTime and version 2."""
MALFORMED: dict[str, tuple[Any, int]] = {
    "a high-water mark with an eventIdentifier": (f"{HEAD}29296E5A1004{UUID.hex()}4600" + "04", 6189505),
    "a negative fragment": (make_event_token(5, 0, UUID, "insert", KEY, None, fragment=0)[0][:-4] + "27FD04", 7182501),
    "a negative txnOpIndex": (f"{HEAD}2C010027FD6E1404", 50794),
    "a text for fromInvalidate": (f"{HEAD}2C0100293C41001404", 50870),
    "a text for the fragment": (GOOD[:-2] + "3C410004", 7182501),
    "a text for the identifier": (f"{HEAD}2C0100296E5A1004{UUID.hex()}3C410004", 6189503),
    "a text for the tokenType": (f"{HEAD}3C4100296E1404", 51056),
    "a text for the txnOpIndex": (f"{HEAD}2C01003C41006E1404", 50855),
    "a text for the uuid": (f"{HEAD}2C0100296E3C41004600" + "04", 6189501),
    "a text for the version": ("8200000005000000013C410029296E1404", 50854),
    "an event without an identifier": (f"{HEAD}2C0100296E5A1004{UUID.hex()}04", 6189502),
    "an identifier without an operationType": (f"{HEAD}2C0100296E5A1004{UUID.hex()}46" + "00" + "04", 6189504),
    "an odd number of digits": ("82635", 9),
    "cut by four bytes": (GOOD[:-8], 15),
    "cut by two bytes": (GOOD[:-4], 15),
    "cut in the time": (GOOD[:8], 15),
    "empty": ("", 40649),
    "more values than a token has": (GOOD[:-2] + "2B022B0204", 40646),
    "no hexadecimal digits": ("zz", 9),
    "no txnOpIndex": (f"{HEAD}2C010004", 50793),
    "no uuid": (f"{HEAD}2C0100296E04", 6189500),
    "nothing behind the time": ("82000000050000000104", 50796),
    "nothing behind the tokenType": (f"{HEAD}2C010004", 50793),
    "nothing behind the txnOpIndex": (f"{HEAD}2C01002904", 50872),
    "nothing behind the version": (f"{HEAD}04", 51055),
    "of a type that no key has": ("00", 50811),
    "of a type that no key has, further back": (f"{HEAD}2C0100296E01", 50811),
    "of an unknown tokenType": (f"{HEAD}2B0A296E1404", 51057),
    "of version 3": ("8200000005000000012B0629296E1404", 50795),
    "spaces around it": (f" {GOOD} ", 9),
}
NOT_TOKENS: dict[str, tuple[Any, int]] = {
    "_data an array": ({"_data": [GOOD]}, 40647),
    "_data an integer": ({"_data": 1}, 40647),
    "_data an object": ({"_data": {"a": 1}}, 40647),
    "_data binary": ({"_data": b"\x82"}, 40647),
    "_data false": ({"_data": False}, 40647),
    "_data null": ({"_data": None}, 40647),
    "_typeBits a text": ({"_data": GOOD, "_typeBits": "gg=="}, 40648),
    "_typeBits a uuid": ({"_data": GOOD, "_typeBits": Binary(UUID, 4)}, 40648),
    "_typeBits an integer": ({"_data": GOOD, "_typeBits": 1}, 40648),
    "_typeBits null": ({"_data": GOOD, "_typeBits": None}, 40648),
    "_typeBits wrong and _data too": ({"_data": "zz", "_typeBits": 1}, 40648),
    "a reference": ({"$ref": "c", "$id": 1}, 40647),
    "a text": (GOOD, 14),
    "an array": ([GOOD], 14),
    "an empty object": ({}, 40647),
    "an integer": (1, 14),
    "another field": ({"data": GOOD}, 40647),
    "true": (True, 14),
}
TOKENS = NOT_TOKENS | {name: ({"_data": text}, code) for name, (text, code) in MALFORMED.items()}


@pytest.mark.parametrize("option", ["resumeAfter", "startAfter"])
@pytest.mark.parametrize("row", TOKENS)
def test_a_token_that_is_none_is_refused_when_the_stream_is_opened(at: Served, row: str, option: str) -> None:
    token, code = TOKENS[row]
    assert at.refused("c", **{option: token})[0] == code


TOLERATED: dict[str, Any] = {
    "a field more": lambda token: {**token, "more": 1},
    "a field before": lambda token: {"before": 1, **token},
    "bytes behind its end": lambda token: {"_data": token["_data"] + "DEADBEEF"},
    "empty type bits": lambda token: {**token, "_typeBits": b"\0"},
    "lower case": lambda token: {"_data": token["_data"].lower()},
    "mixed case": lambda token: {"_data": token["_data"][:20].lower() + token["_data"][20:]},
    "without its end byte": lambda token: {"_data": token["_data"][:-2]},
}


@pytest.mark.parametrize("row", TOLERATED)
def test_a_token_that_is_not_quite_as_it_was_is_understood(at: Served, coll: str, row: str) -> None:
    stream = at.watch(coll)
    at.insert(coll, {"_id": 1}, {"_id": 2})
    first = stream.read()[0]["_id"]
    assert ids(at.watch(coll, resumeAfter=TOLERATED[row](first)).read()) == [2]
    assert ids(at.watch(coll, startAfter=TOLERATED[row](first)).read()) == [2]


KEYS: dict[str, Any] = {
    "a double": 1.5, "a long": Int64(5), "a whole double": 2.0, "an object with doubles": {"a": 1.0, "b": [Int64(1)]},
}  # fmt: skip


@pytest.mark.parametrize("row", KEYS)
def test_type_bits_come_with_the_token_and_may_be_missing(at: Served, row: str) -> None:
    name = at.name()
    stream = at.watch(name)
    at.insert(name, {"_id": KEYS[row]}, {"_id": "next"})
    first = stream.read()[0]
    assert list(first["_id"]) == ["_data", "_typeBits"] and type(first["_id"]["_typeBits"]) is bytes
    for token in (first["_id"], {"_data": first["_id"]["_data"]}):
        assert ids(at.watch(name, resumeAfter=token).read()) == ["next"]


OPTIONS: dict[str, tuple[dict[str, Any], int]] = {
    "a mark and a time": ({"resumeAfter": mark(1), "startAtOperationTime": Timestamp(1, 1)}, 40674),
    "all three": ({
        "resumeAfter": mark(1), "startAfter": mark(1), "startAtOperationTime": Timestamp(1, 1),
    }, 50865),
    "startAfter and a time": ({"startAfter": mark(1), "startAtOperationTime": Timestamp(1, 1)}, 40674),
    "two tokens": ({"resumeAfter": mark(1), "startAfter": mark(1)}, 50865),
}  # fmt: skip


@pytest.mark.parametrize("row", OPTIONS)
def test_there_is_one_position_to_start_from(at: Served, row: str) -> None:
    options, code = OPTIONS[row]
    assert at.refused("c", **options)[0] == code


# Versions of tokens.


def old(event: dict[str, Any], version: int) -> dict[str, str]:
    """The token that an older release would have made for the event of a document."""
    token = decode_token(event["_id"])
    text, _ = make_event_token(
        token.cluster_time, token.txn_op_index, token.uuid, event["operationType"], encode(event["documentKey"]), None,
        version=version,
    )  # fmt: skip
    return {"_data": text}


@pytest.mark.parametrize("version", [0, 1])
def test_tokens_of_older_releases_are_understood_and_answered_with_todays(at: Served, coll: str, version: int) -> None:
    stream = at.watch(coll)
    at.insert(coll, {"_id": 1}, {"_id": 2})
    first, second = stream.read()
    resumed = at.watch(coll, resumeAfter=old(first, version))
    assert resumed.read() == [second]


def test_the_rest_of_a_transaction_keeps_its_tokens_version_up_to_the_resume_point(at: Served, coll: str) -> None:
    stream = at.watch(coll)
    at.transaction(1, [{"insert": coll, "documents": [{"_id": number} for number in (1, 2, 3)]}])
    events = stream.read()
    assert at.watch(coll, resumeAfter=old(events[1], 1)).read() == events[2:]


def test_a_drop_resumed_with_an_old_token_gives_an_old_invalidate(at: Served, coll: str) -> None:
    start = at.watch(coll).token
    at.must({"drop": coll})
    drop, invalidate = at.watch(coll, resumeAfter=start).read()
    token = decode_token(drop["_id"])
    text, _ = make_event_token(token.cluster_time, 0, token.uuid, "drop", None, None, version=1)
    (again,) = at.watch(coll, resumeAfter={"_data": text}).read()
    assert decode_token(again["_id"]).version == 1 and decode_token(again["_id"]).from_invalidate
    assert {**again, "_id": invalidate["_id"]} == invalidate


# Going on.


def test_a_stream_goes_on_behind_every_event_with_each_kind_of_token(at: Served, coll: str) -> None:
    start, elsewhere = at.watch(coll).token, at.name()
    at.insert(coll, {"_id": 1}, {"_id": 2})
    at.must({"create": elsewhere})
    at.transaction(2, [
        {"insert": coll, "documents": [{"_id": 3}, {"_id": 4}]},
        {"insert": elsewhere, "documents": [{"x": 1}]},
        {"update": coll, "updates": [{"q": {"_id": 3}, "u": {"$set": {"a": 1}}}]},
        {"delete": coll, "deletes": [{"q": {"_id": 4}, "limit": 1}]},
    ])  # fmt: skip
    at.update(coll, 1, {"r": 1})
    every = at.watch(coll, resumeAfter=start).read()
    assert kinds(every) == ["insert"] * 4 + ["update", "delete", "replace"]
    assert [decode_token(event["_id"]).txn_op_index for event in every] == [0, 0, 0, 1, 3, 4, 0]
    for option in ("resumeAfter", "startAfter"):
        for index, event in enumerate(every):
            assert at.watch(coll, **{option: event["_id"]}).read() == every[index + 1 :]
            assert at.watch(coll, BEHIND, **{option: event["_id"]}).read() == []


def test_a_transaction_is_resumed_in_its_middle_one_event_at_a_time(at: Served, coll: str) -> None:
    stream = at.watch(coll)
    token = stream.token
    at.transaction(3, [{"insert": coll, "documents": [{"_id": number} for number in range(1, 8)]}])
    seen = []
    for _ in range(7):
        cursor = at.must({**at.opening(coll, resumeAfter=token), "cursor": {"batchSize": 1}})["cursor"]
        (event,) = cursor["firstBatch"]
        token = cursor["postBatchResumeToken"]
        assert token == event["_id"]
        seen.append(event["documentKey"]["_id"])
    assert seen == list(range(1, 8))


def test_an_event_of_one_scope_is_a_resume_point_for_a_wider_one(at: Served, coll: str) -> None:
    stream = at.watch(coll)
    at.insert(coll, {"_id": 1}, {"_id": 2})
    first = stream.read()[0]["_id"]
    for where, db in ((1, "t"), (1, "admin")):
        assert ids(at.watch(where, db=db, resumeAfter=first).read()) == [2]


def not_found(at: Served, stream: Stream, token: dict[str, Any]) -> None:
    reply = stream.more()
    assert (reply["code"], reply["codeName"]) == (280, "ChangeStreamFatalError")
    assert reply["errorLabels"] == ["NonResumableChangeStreamError"]
    text = f'cannot resume stream; the resume token was not found. {{_data: "{token["_data"]}"}}'
    assert reply["errmsg"].endswith(text)
    assert at.code({"getMore": stream.id, "collection": stream.namespace.partition(".")[2]}) == 43


def test_another_collections_token_is_missed_when_the_next_event_comes(at: Served, coll: str) -> None:
    other = at.watch("elsewhere")
    at.insert("elsewhere", {"x": 1})
    token = other.read()[0]["_id"]
    streams = [at.watch(coll, resumeAfter=token), at.watch(coll, startAfter=token)]
    assert [stream.read() for stream in streams] == [[], []]
    at.insert(coll, {"_id": 1})
    for stream in streams:
        not_found(at, stream, token)
    assert at.refused(coll, resumeAfter=token)[0] == 280


def test_an_expanded_events_token_is_missing_where_there_are_no_such_events(at: Served) -> None:
    name = at.name()
    expanded = at.watch(name, showExpandedEvents=True)
    at.must({"create": name})
    token = expanded.read()[0]["_id"]
    stream = at.watch(name, resumeAfter=token)
    assert stream.read() == []
    at.insert(name, {"_id": 1})
    not_found(at, stream, token)
    assert kinds(at.watch(name, showExpandedEvents=True, resumeAfter=token).read()) == ["insert"]


def test_an_invented_token_of_a_time_to_come_is_missed_when_the_time_has_come(at: Served, coll: str) -> None:
    time = from_timestamp(at.now()) + 2
    text, _ = make_event_token(time, 0, UUID, "insert", KEY, None)
    stream = at.watch(coll, resumeAfter={"_data": text})
    at.insert(coll, {"_id": 1})
    assert stream.read() == []
    at.insert(coll, {"_id": 2}, {"_id": 3})
    not_found(at, stream, {"_data": text})


def test_a_collections_stream_needs_a_token_with_a_uuid(at: Served, coll: str) -> None:
    text, _ = make_event_token(5 << 32, 0, None, "dropDatabase", None, None)
    code, message = at.refused(coll, resumeAfter={"_data": text})
    assert (code, message) == (
        260, "Attempted to resume a single-collection stream, but the resume token does not include a UUID.",
    )  # fmt: skip


# History that is gone.

HISTORY_GONE = "Resume of change stream was not possible, as the resume point may no longer be in the oplog."


def test_a_position_that_left_the_oplog_is_error_286_at_open_and_at_every_later_read() -> None:
    with serving(oplog_hours=1) as at:
        at.insert("c", {"_id": 0})
        start = at.watch("c").token
        at.insert("c", {"_id": 1})
        event = at.watch("c", resumeAfter=start).read()[0]
        begun, quiet, behind = at.watch("c"), at.watch("q"), at.watch("c", startAtOperationTime=Timestamp(1, 1))
        old_time = at.now()
        body = {**at.opening("c", resumeAfter=start), "cursor": {"batchSize": 0}}
        unread = Int64(at.must(body)["cursor"]["id"])
        at.clock.advance(2 * 3_600_000)
        at.insert("c", {"_id": 2})
        assert at.server.prune() > 0
        for options in (
            {"resumeAfter": start}, {"startAfter": start}, {"resumeAfter": event["_id"]},
            {"startAtOperationTime": old_time}, {"startAtOperationTime": Timestamp(1, 1)},
        ):  # fmt: skip
            reply = at.ask(at.opening("c", **options))
            assert (reply["code"], reply["codeName"]) == (286, "ChangeStreamHistoryLost")
            assert reply["errorLabels"] == ["NonResumableChangeStreamError"]
            assert reply["errmsg"] == f"PlanExecutor error during aggregation :: caused by :: {HISTORY_GONE}"
        reply = at.ask({"getMore": unread, "collection": "c"})
        assert (reply["code"], reply["errorLabels"]) == (286, ["NonResumableChangeStreamError"])
        assert reply["errmsg"] == f"Executor error during getMore :: caused by :: {HISTORY_GONE}"
        assert at.code({"getMore": unread, "collection": "c"}) == 43
        assert ids(begun.read()) == [2] and ids(behind.read())[-1:] == [2]
        assert quiet.read() == [] and quiet.token == mark(at.now())
        assert ids(at.watch("c", startAtOperationTime=at.now()).read()) == [2]


def test_a_transaction_whose_first_entries_are_gone_is_error_286(at: Served) -> None:
    with serving(oplog_hours=1) as other:
        other.must({"create": "c"})
        large = "x" * 6_000_000
        other.transaction(1, [{"insert": "c", "documents": [{"_id": number, "x": large}]} for number in range(4)])
        time = other.now()
        body = {"count": "oplog.rs", "query": {"op": "c", "o.applyOps": {"$exists": True}}}
        assert other.must(body, "local")["n"] == 2
        assert len(other.watch("c", {"$project": {"fullDocument": 0}}, startAtOperationTime=time).read()) == 4
        other.clock.advance(3_600_000)
        other.must({"setParameter": 1, "oplogEntriesMax": 1}, "admin")
        other.server.prune()
        reply = other.ask(other.opening("c", startAtOperationTime=time))
        assert (reply["code"], reply["errorLabels"]) == (286, ["NonResumableChangeStreamError"])
        assert reply["errmsg"].endswith(
            "Oplog no longer has history necessary for $changeStream to observe operations from a committed "
            "transaction."
        )


def test_idle_streams_never_age_out_as_long_as_they_are_read() -> None:
    with serving(oplog_hours=1) as at:
        at.must({"create": "c"})
        stream = at.watch("c")
        for _ in range(30):
            at.clock.advance(300_000)
            at.tick()
            assert stream.read() == []
            assert at.watch("c", resumeAfter=stream.token).read() == []
        at.insert("c", {"_id": 1})
        assert ids(stream.read()) == [1]
