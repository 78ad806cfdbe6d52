"""Splitting events that are too large, and resuming between their fragments."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from headrace import limits
from headrace.changes import split
from headrace.errors import CommandError
from headrace.values.bson import decode, encode
from headrace.values.token import decode_token
from tests.changes.oplog import Documents, command, documents, events_in, insert, stream, update

SPLIT = {"$changeStreamSplitLargeEvent": {}}
MEGABYTE = 1024 * 1024
BEFORE = {"_id": 1, "text": "b" * (9 * MEGABYTE)}
NOW = {"_id": 1, "text": "a" * (8 * MEGABYTE)}
DATA = update(1, {"u": {"a": 1}})
MODES = {"fullDocument": "updateLookup", "fullDocumentBeforeChange": "required"}


def large(*stages: dict[str, Any], **options: Any) -> Any:
    return events_in(stream("collection", *stages, **MODES, **options), DATA, lookup=Documents(NOW, BEFORE))


def test_a_large_event_comes_in_fragments_by_size_and_name() -> None:
    events = large(SPLIT)
    first, second = documents(events)
    assert list(first) == [
        "_id", "splitEvent", "wallTime", "clusterTime", "operationType", "documentKey", "ns", "updateDescription",
        "fullDocument",
    ]  # fmt: skip
    assert list(second) == ["_id", "splitEvent", "fullDocumentBeforeChange"]
    assert (first["splitEvent"], second["splitEvent"]) == ({"fragment": 1, "of": 2}, {"fragment": 2, "of": 2})
    tokens = [decode_token(decode(event.token_document)) for event in events]
    assert [token.fragment for token in tokens] == [0, 1]
    assert first["_id"] == decode(events[0].token_document)
    assert events[0].token < events[1].token


def test_an_event_that_fits_is_not_split() -> None:
    (result,) = documents(events_in(stream("collection", SPLIT), insert({"_id": 1})))
    assert "splitEvent" not in result


@pytest.mark.parametrize("excess", [0, 1])
def test_the_limit_counts_the_event_and_its_token(excess: int) -> None:
    document, token = bytes(100), bytes(20)
    assert split.must_split(document, token, 120 - excess) is bool(excess)


@pytest.mark.parametrize("seen", [0, 1])
@pytest.mark.parametrize("option", ["resumeAfter", "startAfter"])
def test_resuming_between_fragments_brings_the_others(seen: int, option: str) -> None:
    events = large(SPLIT)
    assert large(SPLIT, **{option: decode(events[seen].token_document)}) == events[seen + 1 :]


def test_an_invalidate_in_fragments_comes_after_its_cause_and_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (split.fragments, split.must_split):
        monkeypatch.setattr(function, "__defaults__", (230,))
    dropped = command({"drop": "c"})
    events = events_in(stream("collection", SPLIT), dropped)
    tokens = [decode_token(decode(event.token_document)) for event in events]
    marks = [token.from_invalidate for token in tokens]
    assert marks == sorted(marks) and marks.count(False) > 1 and marks.count(True) > 1
    assert [event.token for event in events] == sorted(event.token for event in events)
    assert [event.closes for event in events] == [False] * (len(events) - 1) + [True]
    after = decode(events[-2].token_document)
    assert events_in(stream("collection", SPLIT, startAfter=after), dropped) == events[-1:]


def failure(*stages: dict[str, Any], **options: Any) -> CommandError:
    with pytest.raises(CommandError) as caught:
        large(*stages, **options)
    return caught.value


def test_resuming_between_fragments_needs_the_stage() -> None:
    error = failure(resumeAfter=decode(large(SPLIT)[0].token_document))
    assert error.code == 280
    assert error.message.startswith("To resume from a split event, the $changeStream pipeline must include a")


def test_resuming_between_fragments_needs_the_same_pipeline() -> None:
    token = decode(large(SPLIT)[1].token_document)
    error = failure({"$unset": "fullDocument"}, SPLIT, resumeAfter=token)
    assert (error.code, "not large enough to be split" in error.message) == (280, True)
    other = {"_data": decode_token(token).text().replace("2B0204", "2B0604")}
    error = failure(SPLIT, resumeAfter=other)
    assert (error.code, "produced a different split" in error.message) == (280, True)


def test_an_event_too_large_and_not_split_is_an_error() -> None:
    error = failure()
    size = len(encode({**documents(large(SPLIT))[0], **documents(large(SPLIT))[1]})) - len(
        encode({"splitEvent": {"fragment": 1, "of": 2}})
    )
    assert error.code == 10334
    assert error.message.startswith("BSONObj size: ")
    assert f"Size must be between 0 and {limits.INTERNAL_DOCUMENT_BYTES_MAX}(16MB) First element: _id: {{ _data: " in (
        error.message
    )
    assert abs(int(error.message.split()[2]) - size) < 64


def ignored(metric: str) -> None:
    """Counts nothing."""


def test_a_field_larger_than_a_fragment_cannot_be_split() -> None:
    event = encode({"_id": {"_data": "00"}, "a": "x" * 300})
    with pytest.raises(CommandError) as caught:
        split.fragments(event, lambda fragment: ("00", encode({"_data": "00"})), ignored, bytes_max=200)
    assert caught.value.code == 7182500


def test_an_event_of_nothing_but_its_id_cannot_be_split() -> None:
    with pytest.raises(CommandError) as caught:
        split.fragments(encode({"_id": {"_data": "00"}}), lambda fragment: ("00", encode({"_data": "00"})), ignored)
    assert caught.value.code == 7182502


@pytest.mark.parametrize("bytes_max", [140, 200, 333, 1000])
def test_fragments_hold_every_field_once_and_none_is_too_large(bytes_max: int) -> None:
    fields = {f"f{number}": "x" * (number * 7 % 50) for number in range(30)}
    made = split.fragments(
        encode({"_id": {"_data": "00"}, **fields}), lambda n: (str(n), encode({"_data": "00"})), ignored, bytes_max
    )
    decoded = [decode(document) for _, _, document in made]
    assert all(len(document) <= bytes_max for _, _, document in made)
    assert [document["splitEvent"] for document in decoded] == [
        {"fragment": index + 1, "of": len(made)} for index in range(len(made))
    ]
    names = [name for document in decoded for name in list(document)[2:]]
    assert sorted(names) == sorted(fields)
    sizes = [(len(fields[name]) + len(name), name) for name in names]
    assert sizes == sorted(sizes)


def test_split_events_are_counted() -> None:
    counts: Counter[str] = Counter()

    def count(metric: str) -> None:
        counts[metric] += 1

    event = encode({"_id": {"_data": "00"}, "a": "x" * 300, "b": "y" * 300})
    split.fragments(event, lambda fragment: ("00", encode({"_data": "00"})), count, bytes_max=500)
    with pytest.raises(CommandError):
        split.fragments(event, lambda fragment: ("00", encode({"_data": "00"})), count, bytes_max=200)
    assert counts == {split.EVENTS_SPLIT: 1, split.EVENTS_FAILED: 1}
