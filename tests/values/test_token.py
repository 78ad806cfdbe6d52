"""Resume tokens: the published ones byte for byte, their order, and what is refused with which code."""

from __future__ import annotations

import base64
from typing import Any
from uuid import UUID

import pytest
from bson import Binary, Decimal128, Int64, Timestamp
from bson_models import VALUES, raw
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CommandError
from headrace.values import bson
from headrace.values.keystring.encoding import END, encode_values
from headrace.values.token import TokenMaker, decode_token, high_water_mark, make_event_token
from tests.examples import examples

repeatable = examples(200)
IDENTITY = UUID("ab1154ac-acd8-49a4-8c61-756d70d3b21f").bytes
INSERT = (
    "82635019A0000000012B042C0100296E5A1004AB1154ACACD849A48C61756D70D3B21F463C6F7065726174696F6E54797065003C69"
    "6E736572740046646F63756D656E744B65790046645F69640064635019A078BE67426D7CF4D2000004"
)
DROP_DATABASE = "8200000001000000012B042C0100296E14463C6F7065726174696F6E54797065003C64726F704461746162617365000004"
VERSION_1 = "826B01375E000000152B022C0100296E5A1004C4BC5DFA124043DD98EA9BDA6DCE614C461E5F6964002B040004"
PUBLISHED = [
    INSERT,
    DROP_DATABASE,
    VERSION_1,
    "8263515EAC000000022B0429296E1404",
    "8263515979000000022B0429296E1404",
    "826275077A000000012B042C0100296E5A1004BFFDB617400E486099007C0E0048B305463C6F7065726174696F6E54797065003C69"
    "6E736572740046646F63756D656E744B65790046645F696400646275077A2F3159F971E405C6000004",
]


def code_of(document: dict[str, Any]) -> int:
    with pytest.raises(CommandError) as caught:
        decode_token(document)
    return caught.value.code


def token_of(*values: Any) -> dict[str, str]:
    return {"_data": (encode_values(values) + END).hex()}


@pytest.mark.parametrize("token", PUBLISHED)
def test_published_tokens_decode_and_encode_to_the_same_bytes(token: str) -> None:
    assert decode_token({"_data": token}).text() == token


def test_the_fields_of_the_reference_insert_are_decoded_and_encode_to_it() -> None:
    token = decode_token({"_data": INSERT})
    assert (token.cluster_time, token.version, token.txn_op_index) == (1666193824 << 32 | 1, 2, 0)
    assert (token.uuid, token.operation_type) == (IDENTITY, "insert")
    assert token.document_key is not None
    assert str(bson.decode(token.document_key)["_id"]) == "635019a078be67426d7cf4d2"
    made = make_event_token(token.cluster_time, 0, IDENTITY, "insert", token.document_key, None)
    assert made == (INSERT, None)
    assert TokenMaker(IDENTITY, "insert").crud(token.cluster_time, 7, token.document_key[9:21]) == (INSERT, None)


def test_a_drop_of_a_database_has_neither_uuid_nor_key() -> None:
    assert make_event_token(1 << 32 | 1, 0, None, "dropDatabase", None, None) == (DROP_DATABASE, None)


def test_a_fragment_ends_with_its_number() -> None:
    text, _ = make_event_token(1, 0, IDENTITY, "update", bson.encode({"_id": 1}), None, fragment=1)
    assert text.endswith(
        "463C6F7065726174696F6E54797065003C7570646174650046646F63756D656E744B657900461E5F6964002B0200002B0204"
    )
    token = decode_token({"_data": text})
    assert token.fragment == 1
    assert token.text(fragment=False) == make_event_token(1, 0, IDENTITY, "update", bson.encode({"_id": 1}), None)[0]


@pytest.mark.parametrize(("version", "expected"), [(2, "goAA"), (1, "QA==")])
def test_a_double_id_has_the_type_bits_of_real_tokens(version: int, expected: str) -> None:
    _, bits = make_event_token(1, 0, IDENTITY, "insert", bson.encode({"_id": 1.5}), None, version=version)
    assert bits is not None
    assert base64.b64encode(bits).decode() == expected


def test_high_water_marks_of_each_version() -> None:
    assert high_water_mark(0x63515EAC << 32 | 2) == "8263515EAC000000022B0429296E1404"
    assert high_water_mark(1, version=1) == "8200000000000000012B0229296E04"
    assert high_water_mark(1, version=0) == "820000000000000001292904"
    for version in (0, 1, 2):
        token = decode_token({"_data": high_water_mark(1, version)})
        assert token.is_high_water_mark
        assert token.text() == high_water_mark(1, version)


@repeatable
@given(VALUES, st.sampled_from([0, 1, 2]), st.sampled_from(["insert", "update", "delete"]), st.integers(0, 300))
def test_the_fast_maker_makes_what_the_slow_one_does(value: Any, version: int, kind: str, index: int) -> None:
    maker = TokenMaker(IDENTITY, kind, version)
    slow = make_event_token(77 << 32 | 5, index, IDENTITY, kind, bson.encode({"_id": value}), None, version=version)
    assert maker.crud(77 << 32 | 5, *raw(value), index) == slow


EVENTS = st.tuples(
    st.integers(0, 3), st.integers(0, 1000), st.booleans(), st.none() | st.binary(min_size=16, max_size=16),
    st.none() | st.integers(0, 300),
)  # fmt: skip


@repeatable
@given(EVENTS, VALUES, st.sampled_from([0, 1, 2]))
def test_what_was_made_is_read_back(event: tuple[Any, ...], value: Any, version: int) -> None:
    time, index, invalidate, uuid, fragment = event
    uuid = uuid or IDENTITY
    invalidate, fragment = (invalidate, fragment) if version else (False, None)
    key = bson.encode({"_id": value})
    text, bits = make_event_token(time, index, uuid, "replace", key, None, invalidate, fragment, version)
    token = decode_token({"_data": text} | ({} if bits is None else {"_typeBits": bits}))
    assert token.text() == text
    assert (token.document_key, token.uuid, token.fragment) == (key, uuid, fragment)
    assert (token.cluster_time, token.txn_op_index, token.from_invalidate) == (time, index, invalidate)
    assert token.operation_type == (None if version < 2 else "replace")


@repeatable
@given(st.lists(EVENTS, min_size=2, max_size=8))
def test_tokens_sort_as_text_in_commit_order(events: list[tuple[Any, ...]]) -> None:
    def rank(event: tuple[Any, ...]) -> tuple[Any, ...]:
        time, index, invalidate, uuid, fragment = event
        return time, 1, index, invalidate, uuid or b"", -1 if fragment is None else fragment

    def text(event: tuple[Any, ...]) -> str:
        time, index, invalidate, uuid, fragment = event
        return make_event_token(time, index, uuid, "drop", None, None, invalidate, fragment)[0]

    placed = [(rank(event), text(event)) for event in events]
    placed += [((event[0], 0), high_water_mark(event[0])) for event in events]
    placed.sort()
    assert [token for _, token in placed] == sorted(token for _, token in placed)


@pytest.mark.parametrize(
    "document",
    [{}, *({"_data": value} for value in (5, None, True, b"x", [INSERT], {"a": 1})), {"data": INSERT}],
)
def test_a_token_without_a_string_is_refused(document: dict[str, Any]) -> None:
    assert code_of(document) == 40647


def test_the_refusal_shows_the_document() -> None:
    with pytest.raises(CommandError) as caught:
        decode_token({"_data": 5})
    assert caught.value.message == (
        "Bad resume token: _data of missing or of wrong type. Expected string, got {_data: 5}"
    )


@pytest.mark.parametrize("bits", [5, "x", None, Binary(b"\0", 4), [b""]])
def test_type_bits_of_another_type_are_refused_before_the_text_is_read(bits: Any) -> None:
    assert code_of({"_data": "zz", "_typeBits": bits}) == 40648


@pytest.mark.parametrize("text", ["zz", "8", "82 00", "0x82", "82\0", "８２"])
def test_what_is_not_hexadecimal_is_refused(text: str) -> None:
    assert code_of({"_data": text}) == 9


TIME, KEY = Timestamp(1, 1), {"operationType": "insert", "documentKey": {"_id": 1}}
ID = Binary(IDENTITY, 4)


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"_data": ""}, 40649),
        ({"_data": "04"}, 40649),
        ({"_data": "00"}, 50811),
        (token_of(TIME), 50796),
        (token_of(TIME, "2"), 50854),
        (token_of(TIME, 3), 50795),
        (token_of(TIME, 2), 51055),
        (token_of(TIME, 2, "x"), 51056),
        (token_of(TIME, 2, 5), 51057),
        (token_of(TIME, 2, 128), 50793),
        (token_of(TIME, 2, 128, "x"), 50855),
        (token_of(TIME, 2, 128, -1), 50794),
        (token_of(TIME, 2, 128, 0), 50872),
        (token_of(TIME, 2, 128, 0, 1), 50870),
        (token_of(TIME, 2, 128, 0, False), 6189500),
        (token_of(TIME, 2, 128, 0, False, "x"), 6189501),
        (token_of(TIME, 2, 128, 0, False, ID), 6189502),
        (token_of(TIME, 2, 128, 0, False, ID, 5), 6189503),
        (token_of(TIME, 2, 128, 0, False, ID, {"_id": 1}), 6189504),
        (token_of(TIME, 2, 0, 0, False, None, KEY), 6189505),
        (token_of(TIME, 2, 128, 0, False, ID, KEY, -1), 7182501),
        (token_of(TIME, 2, 128, 0, False, ID, KEY, "x"), 7182501),
        (token_of(TIME, 2, 128, 0, False, ID, KEY, 1, 1), 40646),
        ({"_data": INSERT, "_typeBits": b"\x01"}, 50854),
    ],
)
def test_each_fault_has_its_code(document: dict[str, Any], code: int) -> None:
    assert code_of(document) == code


@pytest.mark.parametrize(
    "document",
    [
        {"_data": INSERT.lower()},
        {"_data": INSERT[:-2]},
        {"_data": INSERT + "DEADBEEF"},
        {"_data": INSERT, "more": 1},
        {"_data": INSERT, "_typeBits": b"\0"},
    ],
)
def test_what_clients_may_do_to_a_token_is_tolerated(document: dict[str, Any]) -> None:
    token = decode_token(document)
    assert token.text() == INSERT
    assert token.document()["_data"] == document["_data"]


def test_a_token_cut_by_two_bytes_or_more_is_refused() -> None:
    assert code_of({"_data": INSERT[:-4]}) == 15
    assert code_of({"_data": INSERT[:-40]}) == 15
    for size in range(2, len(INSERT) - 2, 2):
        assert code_of({"_data": INSERT[:size]})


@pytest.mark.parametrize("value", [1.5, Int64(2**40), Decimal128("1.10"), -0.0])
def test_a_token_without_its_type_bits_still_decodes_the_same(value: Any) -> None:
    text, bits = make_event_token(1, 0, IDENTITY, "insert", bson.encode({"_id": value}), None)
    assert bits is not None
    assert decode_token({"_data": text}).text() == text


def test_version_1_identifies_new_events_by_their_type() -> None:
    description = bson.encode({"a": 1})
    text, _ = make_event_token(1, 0, IDENTITY, "create", None, description, version=1)
    token = decode_token({"_data": text})
    identifier = {"operationType": "create", "operationDescription": {"a": 1}}
    assert (token.operation_type, token.document_key) == ("create", None)
    assert bson.decode(token.event_identifier or b"") == identifier
    drop = decode_token({"_data": make_event_token(1, 0, IDENTITY, "drop", None, None, True, version=1)[0]})
    assert (drop.from_invalidate, drop.event_identifier) == (True, None)


def test_a_version_0_token_can_be_converted_to_version_1() -> None:
    key = bson.encode({"_id": 1})
    old = decode_token({"_data": make_event_token(9, 2, IDENTITY, "insert", key, None, version=0)[0]})
    assert old.text(version=1) == make_event_token(9, 2, IDENTITY, "insert", key, None, version=1)[0]
    assert decode_token({"_data": high_water_mark(9, 0)}).text(version=1) == high_water_mark(9, 1)
