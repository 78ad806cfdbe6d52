"""Arguments by family: negative numbers, sizes of every type, and what one field of a stage or an expression takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from bson import Binary, Decimal128, Int64, Regex

from headrace.testing.driven import DrivenServer

MISSING: Final = object()
NOT_NUMBERS: Final = ("100", True, None, [1], {"a": 1}, Regex("a"), Binary(b"a"))
NEGATIVE: Final = (-1, Int64(-1), -1.0, Decimal128("-1"), Int64(-(2**63)))


@pytest.fixture(scope="module")
def at() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 1, "s": "Ada", "arr": [{"x": 1}, {"x": 5}]}]})
        yield server


def code(at: DrivenServer, body: dict[str, Any], database: str = "t") -> int:
    reply = at.run(database, body)
    assert isinstance(reply, dict)
    return 0 if reply["ok"] == 1.0 else int(reply["code"])


@pytest.mark.parametrize("value", NEGATIVE)
def test_negative_limits(at: DrivenServer, value: Any) -> None:
    """As recorded: 2 of find and count, 15958 of `$limit`."""
    for body in ({"find": "c", "limit": value}, {"find": "c", "skip": value}, {"count": "c", "skip": value}):
        assert code(at, body) == 2
    assert code(at, {"find": "c", "batchSize": value}) == 51024
    assert code(at, {"count": "c", "limit": value}) == (2 if value == -(2**63) else 0)
    of_limit = 5107201 if type(value) is Decimal128 else 15958
    for stage, expected in (("$limit", of_limit), ("$skip", 5107200)):
        assert code(at, {"aggregate": "c", "pipeline": [{stage: value}], "cursor": {}}) == expected
    assert code(at, {"aggregate": "c", "pipeline": [], "cursor": {"batchSize": value}}) == 51024


@pytest.mark.parametrize("value", [0, Int64(0), 0.0, -0.0, Decimal128("0"), Decimal128("-0")])
def test_zero_is_no_limit_of_a_stage(at: DrivenServer, value: Any) -> None:
    assert code(at, {"aggregate": "c", "pipeline": [{"$limit": value}], "cursor": {}}) == 15958
    assert code(at, {"aggregate": "c", "pipeline": [{"$skip": value}], "cursor": {}}) == 0
    assert code(at, {"find": "c", "limit": value}) == 0


@pytest.mark.parametrize("value", [*NOT_NUMBERS, 0.5, -0.5, float("nan"), float("inf"), Decimal128("1.5"), 2.0**63])
def test_numbers_that_are_no_limit(at: DrivenServer, value: Any) -> None:
    of_limit = 15958 if value == -0.5 else 5107201
    for stage, expected in (("$limit", of_limit), ("$skip", 5107200)):
        assert code(at, {"aggregate": "c", "pipeline": [{stage: value}], "cursor": {}}) == expected


@pytest.mark.parametrize(
    "value",
    [*NOT_NUMBERS, MISSING, *NEGATIVE, 0, -0.0, 0.5, -0.5, float("nan"), float("-inf"), Decimal128("0.5"),
     Decimal128("NaN"), Decimal128("-Infinity"), Decimal128("-0")],
)  # fmt: skip
def test_sizes_that_a_capped_copy_does_not_take(at: DrivenServer, value: Any) -> None:
    body = {"cloneCollectionAsCapped": "c", "toCollection": "d", "size": value}
    if value is MISSING:
        del body["size"]
    assert code(at, body) == 72


@pytest.mark.parametrize("value", [Int64(2**50 + 1), float("inf"), Decimal128("Infinity"), Decimal128("1E+6000")])
def test_sizes_that_are_too_large(at: DrivenServer, value: Any) -> None:
    assert code(at, {"cloneCollectionAsCapped": "c", "toCollection": "d", "size": value}) == 2
    assert code(at, {"convertToCapped": "c", "size": value}) == 2


@pytest.mark.parametrize("value", [1, Int64(2**50), 1.9, Decimal128("0.51")])
def test_sizes_that_it_takes(at: DrivenServer, value: Any) -> None:
    assert code(at, {"cloneCollectionAsCapped": "c", "toCollection": "d", "size": value}) == 0
    at.must("t", {"drop": "d"})


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"$jsonSchema": {"required": ["x"]}}, 224),
        ({"$and": [{"$jsonSchema": {}}]}, 224),
        ({"loc": {"$near": [0, 0]}}, 5626500),
        ({"$or": [{"loc": {"$nearSphere": [0, 0]}}]}, 5626500),
        ({"$text": {"$search": "x"}}, 2),
        ({"$expr": {"$eq": ["$x", 1]}}, 2),
        ({"$and": []}, 2),
        ({"x": 5}, 0),
    ],
)
def test_conditions_of_a_projected_element(at: DrivenServer, condition: dict[str, Any], expected: int) -> None:
    assert code(at, {"find": "c", "projection": {"arr": {"$elemMatch": condition}}}) == expected


@pytest.mark.parametrize(
    ("name", "field", "expected"),
    [
        ("$encStrContains", "substring", 10208801), ("$encStrEndsWith", "suffix", 10120901),
        ("$encStrNormalizedEq", "string", 10255700), ("$encStrStartsWith", "prefix", 10111808),
    ],
)  # fmt: skip
def test_texts_that_are_not_encrypted_are_not_looked_for(
    at: DrivenServer, name: str, field: str, expected: int
) -> None:
    def answer(argument: Any) -> int:
        return code(at, {"find": "c", "filter": {"$expr": {name: argument}}})

    assert answer({"input": "$s", field: "A"}) == expected
    assert answer({"input": "$missing", field: "A"}) == 0
    assert answer({"input": "$s"}) == answer({field: "A"}) == 40414
    assert answer({"input": "$s", field: "A", "more": 1}) == 40415
    assert answer("A") == answer({"input": 1, field: "A"}) == answer({"input": "$s", field: 1}) == 14
    assert answer({"input": "$s", field: Binary(b"a", 6)}) == 115


def stage(at: DrivenServer, name: str, spec: Any, database: str = "admin", collection: Any = 1) -> int:
    return code(at, {"aggregate": collection, "pipeline": [{name: spec}], "cursor": {}}, database)


def test_statistics_of_queries_and_sampled_queries_are_empty(at: DrivenServer) -> None:
    for name in ("$queryStats", "$listSampledQueries"):
        reply = at.must("admin", {"aggregate": 1, "pipeline": [{name: {}}, {"$match": {"a": 1}}], "cursor": {}})
        assert reply["cursor"] == {"firstBatch": [], "id": 0, "ns": "admin.$cmd.aggregate"}
        assert stage(at, name, {}, "t") == stage(at, name, {}, "admin", "c") == 73
        assert stage(at, name, {"more": 1}) == 40415
        pipeline = [{"$match": {}}, {name: {}}]
        assert code(at, {"aggregate": 1, "pipeline": pipeline, "cursor": {}}, "admin") in (40602, 73)
    hidden = {"algorithm": "hmac-sha-256", "hmacKey": Binary(bytes(32), 8)}
    assert stage(at, "$queryStats", {"transformIdentifiers": hidden}) == 0
    assert stage(at, "$queryStats", 1) == stage(at, "$queryStats", {"transformIdentifiers": {**hidden, "hmacKey":
                 Binary(bytes(32))}}) == 9  # fmt: skip
    assert stage(at, "$queryStats", {"transformIdentifiers": {}}) == 40414
    assert stage(at, "$queryStats", {"transformIdentifiers": 1}) == 14
    assert stage(at, "$queryStats", {"transformIdentifiers": {**hidden, "algorithm": "md5"}}) == 2
    assert stage(at, "$listSampledQueries", {"namespace": "t.c"}) == 0
    assert stage(at, "$listSampledQueries", {"namespace": "t"}) == 73
    assert stage(at, "$listSampledQueries", {"namespace": 1}) == 14
    assert stage(at, "$listSampledQueries", 1) == 6876000


def test_options_behind_a_flag_of_the_server(at: DrivenServer) -> None:
    for name in ("recordIdsReplicated", "temp"):
        assert code(at, {"create": "n", name: True}) == 72
        assert code(at, {"create": "n", name: False}) == 0
        at.must("t", {"drop": "n"})
