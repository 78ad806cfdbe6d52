"""MongoDB's answers to updates and upserts, and the pure functions': documents, errors, diffs, descriptions."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
from bson import ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS
from bson.json_util import CANONICAL_JSON_OPTIONS, dumps, loads

from headrace.changes.document_events import describe
from headrace.errors import CommandError
from headrace.query.diff import apply_diff, identical
from headrace.query.update.update import Diff, UpdateContext, check_upsert_filter, upsert_document
from headrace.query.update.update_parser import parse_update
from headrace.values.bson import decode, encode
from tests.recordings import RECORDINGS

NOW_MS = 1_900_000_000_000
TIMESTAMP = Timestamp(1_900_000_000, 7)
NEW_ID = ObjectId("ffffffffffffffffffffffff")
MARKS = {"#oid": {"#oid": 0}, "#ts": {"#ts": 0}, "#wall": {"#wall": 0}}
OUR_MARKS = ((NEW_ID, "#oid"), (TIMESTAMP, "#ts"), (DatetimeMS(NOW_MS), "#wall"))


def cases(family: str) -> Iterator[dict[str, Any]]:
    path = RECORDINGS / f"{family}.jsonl.gz"
    if not path.exists():
        pytest.skip("no recordings here")
    for line in gzip.decompress(path.read_bytes()).splitlines():
        case = json.loads(line)
        yield {"id": case["id"], "steps": [from_json(step) for step in case["steps"]], "expect": case["expect"]}


def from_json(value: Any) -> Any:
    """Extended JSON to the values the core works with."""
    parsed = loads(json.dumps(value), json_options=CANONICAL_JSON_OPTIONS)
    return decode(encode(parsed))


def without_marks(value: Any) -> Any:
    """The answer with every marker's number set to 0, so that order of first appearance does not matter."""
    if isinstance(value, dict):
        if len(value) == 1 and next(iter(value)) in MARKS:
            return MARKS[next(iter(value))]
        return {key: without_marks(item) for key, item in value.items()}
    return [without_marks(item) for item in value] if isinstance(value, list) else value


def to_json(value: Any) -> Any:
    """A value of ours as plain extended JSON, what differs from run to run marked."""
    return json.loads(dumps(_marked(value), json_options=CANONICAL_JSON_OPTIONS))


def _marked(value: Any) -> Any:
    for ours, mark in OUR_MARKS:
        if type(value) is type(ours) and value == ours:
            return {mark: 0}
    if isinstance(value, dict):
        return {key: _marked(item) for key, item in value.items()}
    return [_marked(item) for item in value] if isinstance(value, list) else value


def number(value: dict[str, str]) -> int:
    return int(value["$numberInt"])


def same(expected: Any, got: Any) -> bool:
    """Equal as JSON, order of fields included."""
    return json.dumps(without_marks(expected)) == json.dumps(without_marks(to_json(got)))


def check_update(case: dict[str, Any], *, messages: bool = False) -> str | None:
    """What is wrong with our answer to a case of the family `updates`, or None."""
    (pre,) = case["steps"][0]["run"]["documents"]
    (statement,) = case["steps"][2]["run"]["updates"]
    reply, result = case["expect"][2], case["expect"][3]["cursor"]["firstBatch"]
    events, entries = case["expect"][4]["events"], case["expect"][5]["#oplog"]
    before = encode(pre)
    try:
        applied = parse_update(statement["u"]).apply(pre, UpdateContext(NOW_MS, TIMESTAMP))
    except CommandError as failure:
        return wrong_error(failure, reply, messages)
    finally:
        assert encode(pre) == before, "the input was changed"
    if failures(reply):
        return f"no error, expected {failures(reply)}"
    if not same(result[0], applied.document):
        return f"document {applied.document}, expected {result[0]}"
    if number(reply["nModified"]) != (applied.change is not None):
        return f"change {applied.change}, expected nModified {reply['nModified']}"
    if applied.change is None:
        return None if not entries else "expected an entry"
    logged = applied.change.entry if isinstance(applied.change, Diff) else applied.document
    if not same(entries[0]["o"], logged):
        return f"entry {logged}, expected {entries[0]['o']}"
    if isinstance(applied.change, Diff):
        if not same(events[0]["updateDescription"], describe(applied.change.diff)):
            return f"description {describe(applied.change.diff)}"
        if not identical(apply_diff(pre, applied.change.diff), applied.document):
            return "the diff does not give the document"
    return None


def failures(reply: dict[str, Any]) -> list[tuple[int, str]]:
    if "error" in reply:
        return [(number(reply["error"]["code"]), reply["error"]["errmsg"])]
    return [(number(error["code"]), error["errmsg"]) for error in reply.get("writeErrors", [])]


def wrong_error(failure: CommandError, reply: dict[str, Any], messages: bool) -> str | None:
    expected = failures(reply)
    if not expected:
        return f"error {failure.code} {failure.message}"
    if failure.code != expected[0][0]:
        return f"error {failure.code} {failure.message}, expected {expected[0]}"
    if messages and not expected[0][1].endswith(failure.message):
        return f"message {failure.message!r}, expected {expected[0][1]!r}"
    return None


def check_upsert(case: dict[str, Any], *, messages: bool = False) -> str | None:
    """What is wrong with our answer to a case of the family `upserts`, or None."""
    (statement,) = case["steps"][0]["run"]["updates"]
    reply, result = case["expect"][0], case["expect"][1]["cursor"]["firstBatch"]
    try:
        update = parse_update(statement["u"])
        check_upsert_filter(statement["q"])
        document = upsert_document(
            update, statement["q"], UpdateContext(NOW_MS, TIMESTAMP, inserting=True), new_id=lambda: NEW_ID
        )
    except CommandError as failure:
        return wrong_error(failure, reply, messages)
    if failures(reply):
        return f"no error, expected {failures(reply)}"
    return None if same(result[0], document) else f"document {document}, expected {result[0]}"


LATER = "Unrecognized parameter to $filter: limit"
"""An answer of the recorded release, not of later ones: $filter takes a limit since 5.2."""


@pytest.mark.parametrize(("family", "check"), [("updates", check_update), ("upserts", check_upsert)])
def test_every_recorded_case_is_answered_as_mongodb_did(family: str, check: Any) -> None:
    comparable = [case for case in cases(family) if LATER not in str(case["expect"])]
    wrong = [f"{case['id']}: {result}" for case in comparable if (result := check(case))]
    assert not wrong, "\n".join(wrong)
