"""`headrace token decode` says what is in a token."""

from __future__ import annotations

import json

import pytest
from bson import ObjectId
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cli.main import main
from headrace.cli.token import describe_token
from headrace.errors import CommandError
from headrace.values.bson import encode
from headrace.values.token import high_water_mark, make_event_token


def test_an_events_token_is_decoded_into_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    key = encode({"_id": ObjectId("64b000000000000000000001")})
    text, _ = make_event_token(1_700_000_000 << 32 | 7, 0, bytes(range(16)), "insert", key, None)
    assert main(["token", "decode", text]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "clusterTime": {"t": 1_700_000_000, "i": 7},
        "date": "2023-11-14T22:13:20+00:00",
        "version": 2,
        "type": "event",
        "operationType": "insert",
        "documentKey": {"_id": {"$oid": "64b000000000000000000001"}},
        "collectionUUID": "00010203-0405-0607-0809-0a0b0c0d0e0f",
        "txnOpIndex": 0,
        "fromInvalidate": False,
    }


def test_a_token_document_is_taken_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "decode", json.dumps({"_data": high_water_mark(5 << 32)})]) == 0
    assert json.loads(capsys.readouterr().out)["type"] == "high water mark"


@pytest.mark.parametrize("text", ["zz", "", "{", "{}", '{"_data": 5}'])
def test_what_is_no_token_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "decode", text]) == 1
    assert capsys.readouterr().err.startswith("headrace: not a resume token")


@settings(derandomize=True, deadline=None)
@given(st.binary(max_size=60), st.booleans())
def test_arbitrary_text_is_a_token_or_an_error_of_the_client(data: bytes, start_well: bool) -> None:
    text = ("8200000001000000012B042C0100296E14" if start_well else "") + data.hex()
    try:
        describe_token(text)
    except CommandError as error:
        assert error.code


def test_tokens_compare_as_their_events_come(capsys: pytest.CaptureFixture[str]) -> None:
    key = encode({"_id": 1})
    first, later = high_water_mark(1000 << 32), make_event_token(1003 << 32 | 7, 0, bytes(16), "insert", key, None)[0]
    for one, other, text in [
        (first, later, "the first is before the second, by 3 s"),
        (later, json.dumps({"_data": first}), "the first is after the second, by 3 s"),
        (high_water_mark(1003 << 32 | 7), later, "the first is before the second, at the same second"),
        (first, first.lower(), "equal"),
    ]:
        assert main(["token", "compare", one, other]) == 0
        assert capsys.readouterr().out == f"{text}\n"
    assert main(["token", "compare", "--json", first, later]) == 0
    assert json.loads(capsys.readouterr().out) == {"first": "before", "secondsBetween": 3}
    assert main(["token", "compare", first, "nonsense"]) == 1


def test_the_token_of_a_time_comes_before_the_events_of_its_second(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "from-time", "2026-11-22T10:00:00Z"]) == 0
    assert json.loads(capsys.readouterr().out) == {"_data": high_water_mark(1795341600 << 32)}
    assert main(["token", "from-time", "soon"]) == 2
