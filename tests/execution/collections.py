"""Two collections with the same documents, one with indexes and one without, and the random things to ask them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from bson import Decimal128, Int64, ObjectId, Regex
from bson.datetime_ms import DatetimeMS
from hypothesis import strategies as st

from headrace.execution.planner import choice
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

SCALARS: list[Any] = [
    None, 0, 1, 2, 3, 1.5, Int64(2), -1, Decimal128("1.5"), Decimal128("2"), float("nan"), Decimal128("NaN"),
    float("inf"), "", "a", "ab", "abc", "a\0b", "b", "x" * 600, "x" * 600 + "y", True, False, ObjectId("0" * 24),
    DatetimeMS(5), DatetimeMS(-5), b"\x00", Regex("a"),
]  # fmt: skip
scalars = st.sampled_from(SCALARS)
common = st.sampled_from([None, 0, 1, 2, 3, "a", "ab"])
plain = common | scalars
inner = st.dictionaries(st.sampled_from(["b", "c", "d"]), plain | st.lists(plain, max_size=3), max_size=3)
values = plain | inner | st.lists(plain | inner | st.lists(plain, max_size=2), max_size=3)
documents = st.lists(st.dictionaries(st.sampled_from(["a", "b", "c"]), values, max_size=3), min_size=1, max_size=12)
flat = st.lists(st.dictionaries(st.sampled_from(["a", "b", "c"]), plain, max_size=3), min_size=1, max_size=12)
"""Documents without arrays, whose indexes can do more."""
PATHS = ["a", "b", "c", "a.b", "a.c", "b.b", "a.d"]
paths = st.sampled_from(PATHS)

operands = plain | inner | st.lists(plain, max_size=2)
operators = st.one_of(
    st.tuples(
        st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]), operands.filter(lambda v: type(v) is not Regex)
    ),
    st.tuples(st.sampled_from(["$in", "$nin"]), st.lists(operands, max_size=4)),
    st.tuples(st.just("$all"), st.lists(plain, min_size=1, max_size=2)),
    st.tuples(st.just("$exists"), st.booleans()),
    st.tuples(st.just("$size"), st.integers(0, 2)),
    st.tuples(
        st.just("$type"),
        st.sampled_from(
            ["number", "string", "null", "array", "object", "date", "regex", "bool", "minKey", ["int", "string"]]
        ),
    ),
    st.tuples(st.just("$regex"), st.sampled_from(["^a", "^ab", "^a.*", "b", "^ab?", "^a|b", "^x"])),
    st.tuples(st.just("$mod"), st.just([2, 1])),
)
conditions = st.lists(operators, min_size=1, max_size=2).map(dict)
elements = st.one_of(
    conditions,
    st.dictionaries(st.sampled_from(["b", "c", "d"]), conditions | plain, min_size=1, max_size=2),
).map(lambda inside: {"$elemMatch": inside})
fields = st.one_of(plain, operands, conditions, conditions.map(lambda inside: {"$not": inside}), elements)
simple = st.dictionaries(paths, fields, max_size=3)
filters = st.one_of(
    simple,
    st.tuples(simple, st.lists(simple, min_size=1, max_size=3)).map(lambda both: {**both[0], "$or": both[1]}),
    st.lists(simple, min_size=1, max_size=2).map(lambda all_of: {"$and": all_of}),
)
sorts = st.none() | st.lists(
    st.tuples(st.sampled_from([*PATHS, "_id"]), st.sampled_from([1, -1])),
    min_size=1,
    max_size=3,
    unique_by=lambda item: item[0],
).map(dict)
keys = st.lists(
    st.tuples(st.sampled_from([*PATHS, "_id", "a.0"]), st.sampled_from([1, -1])),
    min_size=1, max_size=3, unique_by=lambda item: item[0],
).map(dict).filter(lambda key: list(key) != ["_id"])  # fmt: skip
options = st.one_of(
    st.just({}), st.just({}), st.just({"sparse": True}),
    st.sampled_from([{"a": {"$gt": 0}}, {"a": {"$exists": True}}, {"b": {"$in": [1, "a"]}}, {"a.b": {"$lte": 2}}]).map(
        lambda covered: {"partialFilterExpression": covered}
    ),
)  # fmt: skip
indexes = st.lists(st.tuples(keys, options), min_size=1, max_size=4, unique_by=lambda item: str(item[0]))


@contextmanager
def filled(made: list[dict[str, Any]], specs: list[Any], *, built_last: bool = False) -> Iterator[DrivenServer]:
    """A server with the documents in `plain`, and in `indexed` with indexes; `plain` lacks what these refuse."""
    with DrivenServer(clock=FakeClock()) as at, mock.patch.object(choice, "_DOCUMENT_COUNT", 1):
        wanted = [{"key": key, "name": f"i{number}", **more} for number, (key, more) in enumerate(specs)]
        if not built_last:
            create(at, wanted)
        for number, document in enumerate(made):
            with_id = {"_id": number, **document}
            reply = at.run("t", {"insert": "indexed", "documents": [with_id]})
            if isinstance(reply, dict) and reply["n"]:
                at.must("t", {"insert": "plain", "documents": [with_id]})
        if built_last:
            create(at, wanted)
        yield at


def create(at: DrivenServer, wanted: list[dict[str, Any]]) -> None:
    """Create indexes, but for those that the documents, or an index of the same key, do not allow."""
    for index in wanted:
        at.run("t", {"createIndexes": "indexed", "indexes": [index]})


def both(at: DrivenServer, command: str, body: dict[str, Any]) -> tuple[Any, Any]:
    """What `plain` and `indexed` answer."""
    replies = [at.run("t", {command: name, **body}) for name in ("plain", "indexed")]
    return replies[0], replies[1]


def batch(reply: Any) -> Any:
    """The first batch of a reply, or its error's code."""
    return reply["cursor"]["firstBatch"] if "cursor" in reply else reply["code"]
