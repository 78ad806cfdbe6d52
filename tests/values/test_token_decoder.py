"""Our tokens are read by the npm package `mongodb-resumetoken-decoder` as what they are.

The package is installed into the user's cache when it is first wanted (`tests/node.py`).
The package knows no type bits and no decimals: whole numbers come as int or long, decimals as the double
towards zero.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from typing import Any

import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, json_util
from bson.datetime_ms import DatetimeMS

from headrace.values import bson
from headrace.values.token import high_water_mark, make_event_token
from tests.node import node_modules

PACKAGE = "mongodb-resumetoken-decoder"
UUID_BYTES = bytes(range(16))

pytestmark = pytest.mark.network

SCRIPT = """
const { decodeResumeToken } = require('mongodb-resumetoken-decoder');
const { EJSON } = require('bson');
for (const token of require('fs').readFileSync(0, 'utf8').split('\\n'))
  console.log(EJSON.stringify(decodeResumeToken(token), { relaxed: false }));
"""

IDS: list[Any] = [
    0, 1, -1, 63, 64, 127, 128, -128, 255, 256, 65535, 2**31 - 1, -(2**31), Int64(2**40), Int64(-(2**40)),
    1.5, -1.5, 0.1, -0.1, 123456.789, 2.0**70, -(2.0**70), 1e-100, -1e-300, 5e-324, math.inf, -math.inf,
    "", "a", "a\0b", "ünï→🙂", "x" * 300, {}, {"a": 1, "b": {"c": "x"}}, {"list": [1, "b", None, [True]]},
    None, True, False, ObjectId("635019a078be67426d7cf4d2"), b"", b"abc", Binary(b"x" * 300, 128),
    Binary(UUID_BYTES, 4), Timestamp(1, 2), Timestamp(2**32 - 1, 2**32 - 1), DatetimeMS(0), DatetimeMS(1577836800000),
    Regex("^a.*b$", "i"), Code("f()"), MinKey(), MaxKey(),
]  # fmt: skip


def decode_in_node(tokens: list[str]) -> list[dict[str, Any]]:
    answer = subprocess.run(
        ["node", "-e", SCRIPT],
        input="\n".join(tokens),
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"NODE_PATH": str(node_modules(PACKAGE))},
    )
    return [json.loads(line) for line in answer.stdout.splitlines()]


def canonical(value: Any) -> Any:
    data = bson.decode(bson.encode({"": value}))
    decoded = json.loads(json_util.dumps(data, json_options=json_util.CANONICAL_JSON_OPTIONS))[""]
    return without_number_types(decoded)


def without_number_types(decoded: Any) -> Any:
    if isinstance(decoded, list):
        return [without_number_types(item) for item in decoded]
    if not isinstance(decoded, dict):
        return decoded
    for kind in ("$numberInt", "$numberLong", "$numberDouble"):
        if set(decoded) == {kind}:
            return float(decoded[kind])
    return {name: item if name.startswith("$") else without_number_types(item) for name, item in decoded.items()}


def token(value: Any, version: int) -> str:
    key = bson.encode({"_id": value})
    return make_event_token(5 << 32 | 7, 300, UUID_BYTES, "insert", key, None, version=version)[0]


@pytest.mark.parametrize("version", [1, 2])
def test_the_package_reads_ids_of_every_type(version: int) -> None:
    decoded = decode_in_node([token(value, version) for value in IDS])
    assert len(decoded) == len(IDS)
    for value, fields in zip(IDS, decoded, strict=True):
        key = fields["documentKey"] if version == 1 else fields["eventIdentifier"]["documentKey"]
        assert without_number_types(key) == {"_id": canonical(value)}, value


def test_the_package_reads_the_other_fields() -> None:
    mark = high_water_mark(9 << 32 | 2)
    key = bson.encode({"_id": 1})
    invalidate, _ = make_event_token(1 << 32, 0, None, "dropDatabase", None, None, True)
    fragment, _ = make_event_token(1 << 32, 0, UUID_BYTES, "update", key, None, fragment=3)
    decoded = decode_in_node([token(1, 2), mark, invalidate, fragment])
    assert decoded[0]["timestamp"] == {"$timestamp": {"t": 5, "i": 7}}
    assert decoded[0]["txnOpIndex"] == {"$numberInt": "300"}
    assert decoded[0]["uuid"] == canonical(Binary(UUID_BYTES, 4))
    assert [without_number_types(item["tokenType"]) for item in decoded] == [128, 0, 128, 128]
    assert [item["fromInvalidate"] for item in decoded] == [False, False, True, False]
    assert decoded[2]["eventIdentifier"] == {"operationType": "dropDatabase"}


@pytest.mark.parametrize("text", ["0.1", "-0.1", "1.1", "3.333333333333333333333333333333333", "1E+23", "-2.5E-100"])
def test_the_package_reads_the_double_near_a_decimal(text: str) -> None:
    decoded = decode_in_node([token(Decimal128(text), 2)])[0]
    number = without_number_types(decoded["eventIdentifier"]["documentKey"]["_id"])
    assert math.isclose(number, float(text), rel_tol=1e-15)
    assert abs(number) <= abs(float(text))
