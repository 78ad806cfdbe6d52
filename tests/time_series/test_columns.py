"""Columns and buckets: what is read is byte for byte what was written."""

from __future__ import annotations

import random
import struct

import pytest
from bson import ObjectId
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.timeseries.bucket import (
    Element,
    decode_column,
    encode_column,
    extended,
    head_of,
    measurements_of,
    new_bucket,
    taken_apart,
)
from headrace.timeseries.series import Series, new_id, slot_of
from headrace.values.bson import decode, encode_in_order

SERIES = Series.of({"timeField": "t", "metaField": "m"})
DOUBLES = (0.0, -0.0, 5.0, 20.1, -3.25, 1e300, 2.0**53, float("inf"), float("nan"))
KINDS = ([1], [9], [0x10], [0x12], [0x11], [7], [8], [2], [10], [1, 2, 9, 10], [1, 0x10])


def value(chance: random.Random, kind: int) -> bytes:
    if kind == 1:
        return struct.pack("<d", chance.choice((*DOUBLES, chance.random(), round(chance.uniform(-50, 50), 2))))
    if kind in (9, 0x11, 0x12):
        return struct.pack("<q", chance.choice((chance.randint(-(2**63), 2**63 - 1), chance.randint(0, 1000))))
    if kind == 0x10:
        return struct.pack("<i", chance.randint(-(2**31), 2**31 - 1))
    if kind == 2:
        text = chance.randbytes(chance.randint(0, 5)).hex().encode() + b"\0"
        return struct.pack("<i", len(text)) + text
    return {7: chance.randbytes(12), 8: bytes((chance.randint(0, 1),)), 10: b""}[kind]


def column(chance: random.Random) -> list[Element]:
    kinds = chance.choice(KINDS)
    made = [(kind, value(chance, kind)) for kind in chance.choices(kinds, k=chance.randint(1, 20))]
    if chance.random() < 0.3:
        made = [made[0], *((0, b"") if chance.random() < 0.5 else element for element in made[1:])]
    return made


def test_columns_of_all_types_are_read_as_they_were_written() -> None:
    chance = random.Random(1)
    for _ in range(3000):
        elements = column(chance)
        expected = [bytes((kind,)) + b"a\0" + raw if kind else b"" for kind, raw in elements]
        assert decode_column(encode_column(elements), b"a", len(elements)) == expected


def test_decimals_far_from_each_other_are_exact() -> None:
    for values in (
        [0.1, 0.2, 123456.789],
        [2.0**52, -(2.0**52)],
        [1e16, 1.5],
        [float("nan"), 1.0],
        [1.0, float("nan")],
    ):
        elements = [(1, struct.pack("<d", item)) for item in values]
        assert decode_column(encode_column(elements), b"", len(values)) == [b"\x01\0" + raw for _, raw in elements]


def measured(count: int, **more: object) -> list[dict[str, object]]:
    return [
        {"_id": ObjectId(), "m": {"s": 1}, "t": DatetimeMS(1_700_000_000_000 + 1000 * at), "v": at / 10, **more}
        for at in range(count)
    ]


@pytest.mark.parametrize("sizes", [[1], [15], [16], [300], [1] * 40, [10, 1, 200, 5], [1, 500]])
def test_a_bucket_has_the_measurements_however_they_came(sizes: list[int]) -> None:
    documents = measured(sum(sizes), text="x")
    parts = [taken_apart(SERIES, encode_in_order(document)) for document in documents]
    start = SERIES.start_ms(parts[0].time_ms)
    bucket = new_bucket(SERIES, new_id(slot_of(SERIES, parts[0].meta, start), None), start, parts[: sizes[0]])
    at = sizes[0]
    for size in sizes[1:]:
        bucket, _ = extended(SERIES, bucket, parts[at : at + size])
        at += size
    assert [decode(raw) for raw in measurements_of(SERIES, bucket)] == documents
    head = head_of(SERIES, bucket)
    assert (head.length, head.start_ms, head.last_ms) == (len(documents), start, parts[-1].time_ms)
    assert head.size == sum(len(encode_in_order(document)) for document in documents)


def test_the_time_and_the_source_come_first_and_duplicate_names_once() -> None:
    raw = b"\x10v\0" + struct.pack("<i", 1) + b"\x10v\0" + struct.pack("<i", 2)
    raw += b"\x09t\0" + bytes(8) + b"\x10m\0" + struct.pack("<i", 7)
    part = taken_apart(SERIES, struct.pack("<i", len(raw) + 5) + raw + b"\0")
    shown = next(measurements_of(SERIES, new_bucket(SERIES, ObjectId(), 0, [part])))
    assert list(decode(shown).items()) == [("t", DatetimeMS(0)), ("m", 7), ("v", 2)]


def test_a_full_bucket_of_a_sensor_is_a_small_part_of_its_documents() -> None:
    documents = measured(1000)
    parts = [taken_apart(SERIES, encode_in_order(document)) for document in documents]
    bucket = new_bucket(SERIES, ObjectId(), SERIES.start_ms(parts[0].time_ms), parts)
    assert len(bucket) < 2 * len(documents)


@pytest.mark.parametrize("time", [None, 5, "2024", [DatetimeMS(0)], ...])
def test_a_measurement_without_a_date_is_refused(time: object) -> None:
    with pytest.raises(CommandError, match="must be present and contain a valid BSON UTC datetime value") as refused:
        taken_apart(SERIES, encode_in_order({"v": 1} if time is ... else {"t": time}))
    assert refused.value.code == 2


@pytest.mark.parametrize("broken", [{}, {"control": 1}, {"control": {"version": 2}}])
def test_what_is_no_bucket_is_an_error_of_the_client(broken: dict[str, object]) -> None:
    with pytest.raises(CommandError) as refused:
        list(measurements_of(SERIES, encode_in_order(broken)))
    assert refused.value.code == 9


def test_a_bucket_with_damaged_columns_is_an_error_of_the_client() -> None:
    parts = [taken_apart(SERIES, encode_in_order(document)) for document in measured(20)]
    document = decode(new_bucket(SERIES, ObjectId(), 0, parts))
    for damaged in (b"", b"\x07abc", document["data"]["v"][:-5], 5):
        with pytest.raises(CommandError) as refused:
            list(measurements_of(SERIES, encode_in_order({**document, "data": {"t": damaged}})))
        assert refused.value.code == 9
