"""Events too large for one reply: refused, or in fragments, and resumed between them (the reference, section 2.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from bson import Binary, Int64

from headrace import limits
from headrace.values.bson import encode
from headrace.values.token import decode_token, make_event_token
from tests.streams.serving import Served, kinds, shape

pytestmark = pytest.mark.long

SPLIT: dict[str, Any] = {"$changeStreamSplitLargeEvent": {}}
IMAGES: dict[str, Any] = {"fullDocument": "required", "fullDocumentBeforeChange": "required"}
LARGE = 9_000_000


@dataclass(frozen=True, slots=True)
class History:
    """A collection in which an insert, a very large update and another insert happened after `start`."""

    coll: str
    start: dict[str, Any]
    full: dict[str, Any]
    """The large event without its images."""


@pytest.fixture(scope="module")
def past(at: Served) -> History:
    name = at.name()
    at.must({"create": name, "changeStreamPreAndPostImages": {"enabled": True}})
    at.insert(name, {"_id": 1, "a": Binary(bytes(LARGE), 0), "n": 0})
    start = at.watch(name).token
    at.insert(name, {"_id": 2})
    at.update(name, 1, {"$set": {"n": 1, "more": "x" * 100}})
    at.insert(name, {"_id": 3})
    full = at.watch(name, resumeAfter=start).read()[1]
    return History(name, start, full)


def counters(at: Served) -> tuple[int, int]:
    """(split, failed) so far."""
    result = at.must({"serverStatus": 1}, "admin")["metrics"]["changeStreams"]
    assert all(type(count) is Int64 for count in result.values())
    return result["largeEventsSplit"], result["largeEventsFailed"]


def small(document: dict[str, Any]) -> dict[str, Any]:
    """An event without its images."""
    return {name: value for name, value in document.items() if not name.startswith("fullDocument")}


def fragments(at: Served, past: History) -> list[dict[str, Any]]:
    return [
        event for event in at.watch(past.coll, SPLIT, resumeAfter=past.start, **IMAGES).read() if "splitEvent" in event
    ]


def test_without_the_stage_it_is_error_10334_after_what_comes_before_it(at: Served, past: History) -> None:
    split, failed = counters(at)
    stream = at.watch(past.coll, resumeAfter=past.start, **IMAGES)
    assert kinds(stream.first) == ["insert"]
    code, message = stream.failure()
    assert code == 10334
    beginning = message.rpartition(" :: ")[2]
    assert beginning.startswith("BSONObj size: ")
    assert " is invalid. Size must be between 0 and 16793600(16MB) First element: _id: {" in beginning
    size, hexadecimal = beginning[14:].split(" is ")[0].split(" ")
    assert int(hexadecimal[3:-1], 16) == int(size) > 2 * LARGE
    assert counters(at)[0] == split and counters(at)[1] > failed
    assert at.code({"getMore": stream.id, "collection": past.coll}) == 43


def test_a_stream_goes_on_after_error_10334_with_the_stage_or_without_the_images(at: Served, past: History) -> None:
    stream = at.watch(past.coll, resumeAfter=past.start, **IMAGES)
    stream.failure()
    assert kinds(at.watch(past.coll, resumeAfter=stream.token).read()) == ["update", "insert"]
    assert len(at.watch(past.coll, SPLIT, resumeAfter=stream.token, **IMAGES).read()) == 3
    assert kinds(at.watch(past.coll, resumeAfter=past.full["_id"], **IMAGES).read()) == ["insert"]


def test_error_10334_at_open_is_the_aggregates(at: Served, past: History) -> None:
    before = at.watch(past.coll, resumeAfter=past.start).first[0]["_id"]
    assert at.refused(past.coll, resumeAfter=before, **IMAGES)[0] == 10334


def test_fragments_hold_every_field_once_the_smallest_first(at: Served, past: History) -> None:
    split, failed = counters(at)
    made = fragments(at, past)
    assert counters(at)[0] > split and counters(at)[1] == failed
    names = [list(fragment)[:2] for fragment in made]
    assert names == [["_id", "splitEvent"]] * 2
    assert [shape(fragment["splitEvent"]) for fragment in made] == [
        shape({"fragment": number, "of": 2}) for number in (1, 2)
    ]
    fields = [name for fragment in made for name in list(fragment)[2:]]
    assert len(set(fields)) == len(fields)
    joined = {name: value for fragment in made for name, value in fragment.items()}
    for name, value in past.full.items():
        assert name == "_id" or joined[name] == value
    sizes = [(len(encode({name: joined[name]})), name) for name in fields]
    assert sizes == sorted(sizes)
    assert all(len(encode(fragment)) <= limits.EVENT_SPLIT_BYTES for fragment in made)
    assert (joined["fullDocument"]["n"], joined["fullDocumentBeforeChange"]["n"]) == (1, 0)


def test_a_fragments_token_is_the_events_with_the_fragments_number_from_0(at: Served, past: History) -> None:
    event = decode_token(past.full["_id"])
    for number, fragment in enumerate(fragments(at, past)):
        text, _ = make_event_token(
            event.cluster_time, 0, event.uuid, "update", event.document_key, None, fragment=number
        )
        assert fragment["_id"] == {"_data": text}


def test_events_around_it_are_not_split(at: Served, past: History) -> None:
    events = at.watch(past.coll, SPLIT, resumeAfter=past.start, **IMAGES).read()
    assert ["splitEvent" in event for event in events] == [False, True, True, False]


def test_the_token_of_a_batch_is_that_of_its_last_fragment(at: Served, past: History) -> None:
    body = at.opening(past.coll, SPLIT, resumeAfter=past.start, **IMAGES)
    cursor = at.must({**body, "cursor": {"batchSize": 0}})["cursor"]
    assert cursor["firstBatch"] == [] and cursor["postBatchResumeToken"] == past.start
    seen = []
    for _ in range(4):
        more = {"getMore": cursor["id"], "collection": past.coll, "batchSize": 1}
        batch = at.must({**more, "getMore": Int64(cursor["id"])})["cursor"]
        (event,) = batch["nextBatch"]
        seen.append(event)
        if len(seen) < 4:
            assert batch["postBatchResumeToken"] == event["_id"]
    assert [event.get("splitEvent", {}).get("fragment") for event in seen] == [None, 1, 2, None]


@pytest.mark.parametrize("option", ["resumeAfter", "startAfter"])
def test_a_stream_resumes_behind_each_fragment(at: Served, past: History, option: str) -> None:
    every = at.watch(past.coll, SPLIT, resumeAfter=past.start, **IMAGES).read()
    for index, event in enumerate(every):
        onwards = at.watch(past.coll, SPLIT, **{option: event["_id"]}, **IMAGES).read()
        assert onwards == every[index + 1 :]


def test_resuming_with_the_full_events_token_goes_past_all_fragments(at: Served, past: History) -> None:
    assert kinds(at.watch(past.coll, SPLIT, resumeAfter=past.full["_id"], **IMAGES).read()) == ["insert"]


def error_of(
    at: Served, past: History, *stages: dict[str, Any], token: dict[str, Any], **options: Any
) -> dict[str, Any]:
    """The error of resuming from a fragment, which the aggregate or the first getMore answers."""
    reply = at.ask(at.opening(past.coll, *stages, resumeAfter=token, **options))
    if reply["ok"] == 1.0:
        more = {"getMore": Int64(reply["cursor"]["id"]), "collection": past.coll, "maxTimeMS": 0}
        reply = at.ask(more)
    assert reply["ok"] == 0.0
    return reply


def test_resuming_from_a_fragment_needs_the_stage(at: Served, past: History) -> None:
    reply = error_of(at, past, token=fragments(at, past)[0]["_id"], **IMAGES)
    assert (reply["code"], reply["errorLabels"]) == (280, ["NonResumableChangeStreamError"])
    assert reply["errmsg"].endswith(
        "To resume from a split event, the $changeStream pipeline must include a $changeStreamSplitLargeEvent stage"
    )


SMALLER: dict[str, list[dict[str, Any]]] = {
    "a projection": [{"$project": {"fullDocument": 0}}],
    "an unset": [{"$unset": ["fullDocument.a", "fullDocumentBeforeChange.a"]}],
}


@pytest.mark.parametrize("row", SMALLER)
def test_the_event_must_be_split_again(at: Served, past: History, row: str) -> None:
    token = fragments(at, past)[0]["_id"]
    reply = error_of(at, past, *SMALLER[row], SPLIT, token=token, **IMAGES)
    assert (reply["code"], reply["errorLabels"]) == (280, ["NonResumableChangeStreamError"])
    assert reply["errmsg"].endswith(
        "Attempted to resume from a split event fragment, but the event in the resumed stream was not large enough to "
        "be split"
    )


def test_the_event_must_be_split_into_as_many(at: Served, past: History) -> None:
    event = decode_token(past.full["_id"])
    text, _ = make_event_token(event.cluster_time, 0, event.uuid, "update", event.document_key, None, fragment=2)
    reply = error_of(at, past, SPLIT, token={"_data": text}, **IMAGES)
    assert reply["code"] == 280
    assert reply["errmsg"].endswith(
        "Attempted to resume from a split event fragment, but the event in the resumed stream produced a different "
        "split. Ensure that the pipeline used to resume is the same as the original"
    )


def test_a_field_that_fits_no_fragment_is_error_7182500(at: Served, past: History) -> None:
    split, failed = counters(at)
    both = {"$set": {"both": {"a": "$fullDocument", "b": "$fullDocumentBeforeChange"}}}
    stream = at.watch(past.coll, both, SPLIT, resumeAfter=past.start, **IMAGES)
    assert stream.failure()[0] == 7182500
    assert counters(at)[0] == split and counters(at)[1] > failed


def test_stages_before_it_may_make_the_event_small_enough(at: Served, past: History) -> None:
    project = {"$project": {"operationType": 1, "documentKey": 1}}
    split, _ = counters(at)
    events = at.watch(past.coll, project, SPLIT, resumeAfter=past.start, **IMAGES).read()
    assert kinds(events) == ["insert", "update", "insert"] and counters(at)[0] == split
    plain = at.watch(past.coll, project, resumeAfter=past.start, **IMAGES).read()
    assert plain == events


def test_a_filter_passes_over_the_large_event(at: Served, past: History) -> None:
    match = {"$match": {"operationType": "insert"}}
    assert kinds(at.watch(past.coll, match, resumeAfter=past.start, **IMAGES).read()) == ["insert", "insert"]


def test_fragments_come_to_streams_on_the_database_and_on_everything(at: Served, past: History) -> None:
    wanted = fragments(at, past)
    for db in ("t", "admin"):
        mine = {"$match": {"ns.coll": past.coll}}
        events = at.watch(1, mine, SPLIT, db=db, resumeAfter=past.start, **IMAGES).read()
        assert [event for event in events if "splitEvent" in event] == wanted


def test_a_watcher_that_is_there_when_it_happens_has_the_fragments(at: Served) -> None:
    name = at.name()
    at.must({"create": name, "changeStreamPreAndPostImages": {"enabled": True}})
    at.insert(name, {"_id": 1, "a": Binary(bytes(LARGE), 0)})
    streams = [at.watch(name, SPLIT, **IMAGES), at.watch(name, SPLIT, **IMAGES), at.watch(name, **IMAGES)]
    at.update(name, 1, {"$set": {"n": 1}})
    first, second = streams[0].read(), streams[1].read()
    assert first == second and [event["splitEvent"]["fragment"] for event in first] == [1, 2]
    assert streams[2].failure()[0] == 10334
    at.must({"drop": name})


REFUSED: dict[str, tuple[list[dict[str, Any]], int]] = {
    "a number for its argument": ([{"$changeStreamSplitLargeEvent": 1}], 7182800),
    "a stage behind it": ([SPLIT, {"$match": {}}], 7182802),
    "another stage that streams do not allow": ([{"$limit": 1}, SPLIT], 20),
    "fields in its argument": ([{"$changeStreamSplitLargeEvent": {"a": 1}}], 7182800),
    "it twice": ([SPLIT, SPLIT], 7183900),
    "null for its argument": ([{"$changeStreamSplitLargeEvent": None}], 7182800),
}


@pytest.mark.parametrize("row", REFUSED)
def test_the_stage_is_last_and_empty_and_there_once(at: Served, row: str) -> None:
    stages, code = REFUSED[row]
    assert at.refused("c", *stages)[0] == code


def test_the_stage_belongs_to_change_streams(at: Served) -> None:
    at.insert("c", {"_id": 1})
    reply = at.ask({"aggregate": "c", "pipeline": [SPLIT], "cursor": {}})
    assert (reply["code"], reply["errmsg"]) == (
        20, "$changeStreamSplitLargeEvent can only be used in a $changeStream pipeline",
    )  # fmt: skip
