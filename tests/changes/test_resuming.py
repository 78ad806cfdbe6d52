"""Resuming at, before and behind every event; tokens that are not found; invalidates; old tokens."""

from __future__ import annotations

import random
from typing import Any

import pytest
from bson import Int64, Timestamp

from headrace.changes.builder import EventBuilder
from headrace.changes.entry import DecodedEntry
from headrace.changes.event import Event
from headrace.changes.resume import ResumeGuard
from headrace.errors import CommandError
from headrace.values.bson import decode
from headrace.values.token import decode_token, high_water_mark, make_event_token
from tests.changes.oplog import (
    UUID,
    Documents,
    at,
    command,
    delete,
    documents,
    events_in,
    insert,
    inside,
    position_of,
    replace,
    stream,
    transaction,
    update,
)  # fmt: skip

HISTORY = [
    insert({"_id": 1}, increment=1),
    insert({"_id": 2}, ns="d.other", increment=2),
    update(1, {"u": {"a": 1}}, increment=3),
    transaction(
        inside("i", {"_id": "x"}, {"_id": "x"}), inside("i", {"_id": "y"}, {"_id": "y"}, ns="d.other"),
        inside("d", {"_id": "x"}), increment=4,
    ),
    replace({"_id": 1, "b": 1}, increment=5),
    command({"create": "e"}, increment=6),
    delete(1, increment=7),
]  # fmt: skip


@pytest.mark.parametrize("option", ["resumeAfter", "startAfter"])
@pytest.mark.parametrize("scope", ["collection", "database", "deployment"])
@pytest.mark.parametrize("expanded", [False, True])
def test_a_stream_resumed_at_any_event_has_exactly_the_rest(option: str, scope: str, expanded: bool) -> None:
    every = events_in(stream(scope, showExpandedEvents=expanded), *HISTORY)
    assert [event.token for event in every] == sorted({event.token for event in every})
    for index, event in enumerate(every):
        token = decode(event.token_document)
        resumed = stream(scope, showExpandedEvents=expanded, **{option: token})
        behind = [data for data in HISTORY if position_of(data) >= event.cluster_time]
        assert events_in(resumed, *behind) == every[index + 1 :]


def test_a_high_water_mark_need_not_be_seen_and_includes_its_position() -> None:
    every = events_in(stream(), *HISTORY)
    for increment in range(1, 8):
        spec = stream(resumeAfter={"_data": high_water_mark(at(increment))})
        behind = [data for data in HISTORY if position_of(data) >= at(increment)]
        assert events_in(spec, *behind) == [event for event in every if event.cluster_time >= at(increment)]
        assert ResumeGuard(spec).settled


def test_a_start_time_is_inclusive() -> None:
    spec = stream(startAtOperationTime=Timestamp(1_700_000_000, 5))
    assert spec.start == at(5)
    assert ResumeGuard(spec).settled


def not_found(spec: Any, *entries: bytes) -> CommandError:
    with pytest.raises(CommandError) as caught:
        events_in(spec, *entries)
    return caught.value


def test_a_token_of_another_collection_is_missed_when_the_next_event_comes() -> None:
    token, _ = make_event_token(at(2), 0, UUID, "insert", b"\x0e\0\0\0\x10_id\0\x02\0\0\0\0", None)
    spec = stream(resumeAfter={"_data": token})
    assert events_in(spec, HISTORY[1]) == []
    error = not_found(spec, *HISTORY[1:])
    assert error.code == 280
    assert error.labels == ("NonResumableChangeStreamError",)
    assert error.message == f'cannot resume stream; the resume token was not found. {{_data: "{token}"}}'


def test_the_token_of_an_expanded_event_is_missed_by_a_stream_that_does_not_show_them() -> None:
    created = events_in(stream("database", showExpandedEvents=True), HISTORY[5])[0]
    spec = stream("database", resumeAfter=decode(created.token_document))
    assert not_found(spec, *HISTORY[5:]).code == 280


def test_a_stream_resumes_at_an_event_that_the_filter_hides() -> None:
    token = decode(events_in(stream(), HISTORY[0])[0].token_document)
    spec = stream("collection", {"$match": {"operationType": "delete"}}, resumeAfter=token)
    assert [document["operationType"] for document in documents(events_in(spec, *HISTORY))] == ["delete", "delete"]


def test_a_required_image_is_not_asked_of_the_event_that_the_client_has() -> None:
    token = decode(events_in(stream(), HISTORY[2])[0].token_document)
    spec = stream(resumeAfter=token, fullDocumentBeforeChange="required")
    assert events_in(spec, HISTORY[2]) == []
    assert not_found(spec, *HISTORY[2:5]).code == 47


ENDS = {
    "drop": ("collection", command({"drop": "c"}, increment=2)),
    "rename": ("collection", command({"renameCollection": "d.c", "to": "d.e", "stayTemp": False}, increment=2)),
    "rename onto": ("collection", command({"renameCollection": "d.x", "to": "d.c", "stayTemp": False}, increment=2)),
    "dropDatabase": ("database", command({"dropDatabase": 1}, uuid=None, increment=2)),
}


@pytest.mark.parametrize("name", ENDS)
def test_an_invalidate_follows_what_caused_it_and_can_be_started_after(name: str) -> None:
    scope, data = ENDS[name]
    after = insert({"_id": 9}, increment=3)
    cause, end = events_in(stream(scope), data, after)
    assert (cause.closes, end.closes) == (False, True)
    assert decode_token(decode(end.token_document)).from_invalidate
    assert events_in(stream(scope, resumeAfter=decode(cause.token_document)), data, after) == [end]
    assert events_in(stream(scope, startAfter=decode(cause.token_document)), data, after) == [end]
    (result,) = events_in(stream(scope, startAfter=decode(end.token_document)), data, after)
    assert decode(result.document or b"")["operationType"] == "insert"


def test_a_second_drop_ends_a_stream_that_was_started_after_the_first() -> None:
    first, second = command({"drop": "c"}, increment=2), command({"drop": "c"}, increment=5)
    _, end = events_in(stream(), first)
    kinds = [event.closes for event in events_in(stream(startAfter=decode(end.token_document)), first, second)]
    assert kinds == [False, True]


def test_a_hidden_invalidate_closes_the_stream_all_the_same() -> None:
    spec = stream("collection", {"$match": {"operationType": "insert"}})
    (end,) = events_in(spec, command({"drop": "c"}), insert({"_id": 1}, increment=2))
    assert end.closes
    assert end.document is None


@pytest.mark.parametrize("key", [1, "s", None, 1.5, Int64(3)])
def test_version_one_tokens_match_and_are_answered_in_kind_until_their_position_is_passed(key: Any) -> None:
    from headrace.values.bson import encode

    first, second = insert({"_id": key}, increment=1), insert({"_id": key}, increment=2)
    token, bits = make_event_token(at(1), 0, UUID, "insert", encode({"_id": key}), None, version=1)
    given = {"_data": token} | ({} if bits is None else {"_typeBits": bits})
    (event,) = events_in(stream(resumeAfter=given), first, second)
    assert event == events_in(stream(), second)[0]


def test_the_invalidate_after_a_version_one_drop_has_a_version_one_token() -> None:
    data = command({"drop": "c"})
    token, _ = make_event_token(at(1), 0, UUID, "drop", None, None, version=1)
    (end,) = events_in(stream(resumeAfter={"_data": token}), data)
    assert decode_token(decode(end.token_document)).version == 1
    token = end.token
    (result,) = events_in(stream(startAfter={"_data": token}), data, insert({"_id": 1}, increment=2))
    assert decode_token(decode(result.token_document)).version == 2


def test_a_version_one_mark_gives_version_one_tokens_at_its_position_only() -> None:
    spec = stream(resumeAfter={"_data": high_water_mark(at(1), version=1)})
    result = events_in(spec, insert({"_id": 1}, increment=1), insert({"_id": 2}, increment=2))
    assert [decode_token(decode(event.token_document)).version for event in result] == [1, 2]


def test_the_first_token_is_that_of_the_client_or_a_mark() -> None:
    token = decode(events_in(stream(), HISTORY[0])[0].token_document)
    assert decode(stream(resumeAfter=token).first_token(at(9))) == token
    start = stream(startAtOperationTime=Timestamp(1_700_000_000, 5))
    assert decode(start.first_token(at(9))) == {"_data": high_water_mark(at(5))}
    assert decode(stream().first_token(at(9))) == {"_data": high_water_mark(at(9))}


@pytest.mark.parametrize("seed", range(20))
def test_tokens_sort_as_the_events_come(seed: int) -> None:
    chance = random.Random(seed)
    keys: list[Any] = [1, -1, 0.5, "a", "b", None, {"a": 1}, Int64(2**40), True, b"x"]
    made = []
    for increment in range(1, 40):
        key = chance.choice(keys)
        operations = [inside("i", {"_id": each}, {"_id": each}) for each in chance.sample(keys, 3)]
        made.append(
            chance.choice(
                [
                    insert({"_id": key}, increment=increment), delete(key, increment=increment),
                    update(key, {"u": {"a": 1}}, increment=increment), transaction(*operations, increment=increment),
                    command({"create": "e"}, increment=increment),
                ]
            )
        )  # fmt: skip
    tokens = [event.token for event in events_in(stream("database", showExpandedEvents=True), *made)]
    assert tokens == sorted(set(tokens))


def test_events_before_one_that_cannot_be_built_are_returned() -> None:
    data = transaction(inside("i", {"_id": 1}, {"_id": 1}), inside("d", {"_id": 1}))
    builder = EventBuilder(stream(fullDocumentBeforeChange="required"), Documents())
    event, error = builder.build(DecodedEntry(data))
    assert isinstance(event, Event) and isinstance(error, CommandError)
    assert [document["operationType"] for document in documents([event])] == ["insert"]
    assert error.code == 47 and "txnNumber: 7" in error.message
