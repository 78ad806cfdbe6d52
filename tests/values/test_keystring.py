"""Keystrings order as values do, equal numbers have equal ones, and they decode to what they were made of."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

import pytest
from bson import Decimal128, Int64
from bson_models import DECIMALS, NUMBERS, VALUES, model_key, raw
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CommandError
from headrace.values import bson
from headrace.values.keystring.decoding import decode_all, decode_value
from headrace.values.keystring.encoding import END, encode_element, encode_values, type_bits
from tests.examples import examples

repeatable = examples(400)


def key(value: Any) -> bytes:
    return encode_element(*raw(value))


def sign(left: Any, right: Any) -> int:
    return (left > right) - (left < right)


@repeatable
@given(VALUES, VALUES)
def test_keystrings_order_as_the_values_do(left: Any, right: Any) -> None:
    assert sign(key(left), key(right)) == sign(model_key(left), model_key(right))


@repeatable
@given(st.lists(NUMBERS, min_size=2, max_size=12))
def test_numbers_of_all_types_order_exactly(numbers: list[Any]) -> None:
    for left in numbers:
        for right in numbers:
            assert sign(key(left), key(right)) == sign(model_key(left), model_key(right)), (left, right)


@repeatable
@given(st.lists(DECIMALS, min_size=2, max_size=12), st.sampled_from([1.0, 1e16, 1e20, 0.1, 1e-80, 1e-310]))
def test_decimals_near_a_double_order_exactly(decimals: list[Decimal128], number: float) -> None:
    for item in decimals:
        assert sign(key(item), key(number)) == sign(model_key(item), model_key(number)), item


@repeatable
@given(VALUES)
def test_a_keystring_and_its_type_bits_give_back_the_value(value: Any) -> None:
    bits = type_bits(bson.encode({"": value}))
    assert decode_value(key(value), bits) == raw(value)


@repeatable
@given(DECIMALS)
def test_a_decimal_comes_back_with_its_trailing_zeros(value: Decimal128) -> None:
    bits = type_bits(bson.encode({"": value}))
    kind, data = decode_value(key(value), bits)
    assert kind == 19
    assert str(Decimal128.from_bid(data)) == str(value)


@repeatable
@given(st.lists(VALUES, max_size=4), VALUES)
def test_keys_of_several_values_part_again(values: list[Any], last: Any) -> None:
    values = [*values, last]
    bits = type_bits(bson.encode({"": values}))
    assert decode_all(encode_values(values) + END, bits) == [raw(value) for value in values]


@repeatable
@given(VALUES)
def test_without_type_bits_a_key_decodes_to_an_equal_value(value: Any) -> None:
    assert encode_element(*decode_value(key(value))) == key(value)


@repeatable
@given(st.binary(max_size=40), st.one_of(st.none(), st.binary(min_size=1, max_size=12)))
def test_arbitrary_bytes_decode_or_are_refused(data: bytes, type_bits: bytes | None) -> None:
    try:
        decode_all(data, type_bits)
    except CommandError as error:
        assert error.code in (15, 50811)


@repeatable
@given(VALUES, st.data())
def test_a_key_cut_short_is_refused_with_overflow(value: Any, data: st.DataObject) -> None:
    integer = key(value)
    cut = data.draw(st.integers(1, len(integer))) - 1
    if cut:
        with pytest.raises(CommandError) as caught:
            decode_value(integer[:cut])
        assert caught.value.code == 15


@pytest.mark.parametrize(
    "text", "0.1 1.1 3.3 -0.7 123456.789 1E+23 2.5E-100 9007199254740993.5 -36028797018963969.5".split()
)
def test_the_close_neighbours_of_a_decimal_order_exactly(text: str) -> None:
    middle = Context(prec=34).create_decimal(text)
    steps = [Decimal(sign).scaleb(middle.adjusted() - digits) for digits in range(13, 34) for sign in (-1, 1)]
    near = [Decimal128(Context(prec=34).add(middle, step)) for step in steps]
    values = [Decimal128(middle), float(middle), *near]
    values += [float(str(value)) for value in near]
    assert sorted(map(key, values)) == [key(value) for value in sorted(values, key=model_key)]


@pytest.mark.parametrize("one", [1, 1.0, Int64(1), Decimal128("1"), Decimal128("1.00"), Decimal128("10E-1")])
def test_equal_numbers_have_equal_keys_whatever_their_types(one: Any) -> None:
    assert key(one).hex() == "2b02"
    assert key({"a": [one]}) == key({"a": [1]})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "29"),
        (-0.0, "29"),
        (128, "2c0100"),
        (-1, "27fd"),
        (Int64(-(2**63)), "1ff83fffffffffffff"),
        (1.5, "2b0380000000000000"),
        (0.5, "2aff80000000000000"),
        (float("nan"), "1e"),
        (float("inf"), "33ffffffffffffffff"),
        (2.0**63, "3307c0000000000000"),
        (Decimal128("0.1"), "2afee6666666666666"),
        ("a\0b", "3c6100ff6200"),
        ({"_id": 1}, "461e5f6964002b0200"),
        ([1, True], "502b026f00"),
        (b"ab", "5a02006162"),
        (None, "14"),
    ],
)
def test_known_values_have_the_documented_bytes(value: Any, expected: str) -> None:
    assert key(value).hex() == expected


def test_types_that_python_lacks_are_encoded_too() -> None:
    assert encode_element(0x06, b"") == b"\x0f"
    assert encode_element(0x0E, b"\x02\0\0\0a\0") == b"\x3ca\0"
    pointer = b"\x02\0\0\0a\0" + bytes(12)
    assert decode_value(encode_element(0x0C, pointer)) == (0x0C, pointer)
    assert encode_element(-1, b"") == encode_element(0xFF, b"") == b"\x0a"


def test_a_symbol_is_distinguished_from_a_string_by_its_type_bit() -> None:
    document = b"\x0e\0\0\0\x0e\0\x02\0\0\0a\0\0"
    assert decode_value(b"\x3ca\0", type_bits(document)) == (0x0E, b"\x02\0\0\0a\0")


def test_an_unknown_type_byte_is_refused_as_mongodb_does() -> None:
    with pytest.raises(CommandError, match="KeyString format error: Unknown type: 0") as caught:
        decode_all(b"\0")
    assert caught.value.code == 50811


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(CommandError) as caught:
        decode_all(b"\x50" * 100_000)
    assert caught.value.code == 15


@pytest.mark.parametrize("count", [1, 3, 4, 600])
def test_type_bits_of_any_length_are_read_back(count: int) -> None:
    values = [1.5] * count
    stored = type_bits(bson.encode({"": values}))
    assert decode_all(encode_values(values), stored) == [raw(1.5)] * count


def test_values_of_default_types_have_no_type_bits() -> None:
    assert type_bits(bson.encode({"a": 1, "b": "x", "c": [None, True]})) is None
