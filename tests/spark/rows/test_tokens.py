"""Tokens with a masked documentKey: what is left of them, their order, and by what they are known."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from bson import MinKey
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.rows.tokens import Token, with_masked_key
from headrace.values import bson
from headrace.values.keystring.encoding import encode_fields
from headrace.values.token import decode_token, high_water_mark, make_event_token
from tests.values import bson_models

COLLECTION = UUID("ab1154ac-acd8-49a4-8c61-756d70d3b21f").bytes
TIMES = st.tuples(st.integers(1, 3), st.integers(0, 300) | st.sampled_from([40_000, 10_000_000]))
KEYS = bson_models.SCALARS | st.text(max_size=5).map(lambda text: {"a": text})
VERSIONS = st.sampled_from([0, 1, 2])


def token_of(time: tuple[int, int], key: dict[str, Any] | None, version: int = 2, kind: str = "insert") -> str:
    document = None if key is None else bson.encode(key)
    return make_event_token(time[0] << 32 | 5, time[1], COLLECTION, kind, document, None, version=version)[0]


def masked_of(token: str, key: dict[str, Any]) -> str:
    return with_masked_key(token, encode_fields(bson.encode(key))[:-1])


@given(TIMES, KEYS, KEYS, VERSIONS)
def test_a_token_has_the_masked_key_behind_a_mark(time: tuple[int, int], key: Any, mask: Any, version: int) -> None:
    token = token_of(time, {"_id": key, "region": "north"}, version)
    masked = masked_of(token, {"_id": mask})
    assert Token(masked).is_masked and not Token(token).is_masked
    decoded = decode_token({"_data": masked})
    assert (decoded.cluster_time, decoded.txn_op_index) == (time[0] << 32 | 5, time[1])
    assert decoded.text() == masked
    key_bytes = decoded.document_key or b""
    assert list(bson.decode(key_bytes)) == ["", "_id"] and bson.decode(key_bytes)[""] == MinKey()


@given(TIMES, TIMES, KEYS, KEYS, VERSIONS)
def test_masked_tokens_are_in_the_order_of_the_others(
    one: tuple[int, int], other: tuple[int, int], key: Any, other_key: Any, version: int
) -> None:
    first, second = token_of(one, {"_id": key}, version), token_of(other, {"_id": other_key}, version)
    masked = masked_of(first, {"_id": "a1"})
    assert masked < first
    if one != other:
        assert (masked < masked_of(second, {"_id": "b2"})) == (masked < second) == (one < other)
    for time in (one[0], one[0] + 1):
        mark = high_water_mark(time << 32 | 5, version)
        assert (mark < masked) == (mark < first)


@pytest.mark.parametrize("kind", ["drop", "invalidate", "create"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_token_without_a_key_stays_as_it_is(kind: str, version: int) -> None:
    description = None if kind == "drop" else bson.encode({"operationType": "insert", "documentKey": {"_id": "a"}})
    token, _ = make_event_token(5 << 32, 0, COLLECTION, kind, None, description, version=version)
    assert masked_of(token, {}) == token and not Token(token).is_masked
    mark = high_water_mark(5 << 32, version)
    assert masked_of(mark, {}) == mark and not Token(mark).is_masked


def test_the_number_of_a_fragment_is_left_out() -> None:
    key = bson.encode({"_id": "a"})
    unsplit, third = (make_event_token(5 << 32, 0, COLLECTION, "update", key, None, fragment=n)[0] for n in (None, 2))
    assert third != unsplit and masked_of(third, {"_id": "b"}) == masked_of(unsplit, {"_id": "b"})
