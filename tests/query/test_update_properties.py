"""Random updates of random documents: only client errors, inputs left alone, and a log that gives the document."""

from __future__ import annotations

from typing import Any

from bson import Decimal128, Int64, Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import given
from hypothesis import strategies as st

from headrace.changes.document_events import describe
from headrace.errors import CommandError
from headrace.query.diff import apply_diff, identical
from headrace.query.update.update import Diff, Replaced, UpdateContext, upsert_document
from headrace.query.update.update_parser import parse_update
from headrace.values.bson import decode, encode
from tests.examples import examples

numbers = st.sampled_from([0, 1, -3, 2147483647, 0.5, -0.0, Int64(2**63 - 1), Decimal128("1.50"), float("inf")])
scalars = numbers | st.sampled_from(["", "abc", None, True, DatetimeMS(5), Timestamp(5, 1)])
names = st.sampled_from(["a", "b", "c"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=3), max_leaves=8
)
documents = st.dictionaries(names, values, max_size=3).map(lambda fields: {"_id": 1, **fields})
sections = st.sampled_from(["a", "b", "c", "0", "1", "3", "$[]", "$[i]", "$"])
paths = st.lists(sections, min_size=1, max_size=3).map(".".join)
small = st.integers(-3, 3)
clauses = st.fixed_dictionaries(
    {"$each": st.lists(values, max_size=3)},
    optional={
        "$position": small,
        "$slice": small,
        "$sort": st.sampled_from([1, -1, {"a": 1}, {"a.b": -1, "b": 1}]),
    },
)
arguments = {
    "$addToSet": values | st.fixed_dictionaries({"$each": st.lists(values, max_size=3)}),
    "$bit": st.dictionaries(st.sampled_from(["and", "or", "xor"]), small | st.just(Int64(12)), max_size=2),
    "$currentDate": st.sampled_from([True, {"$type": "timestamp"}]),
    "$inc": numbers,
    "$max": values,
    "$min": values,
    "$mul": numbers,
    "$pop": st.sampled_from([1, -1]),
    "$pull": values | st.sampled_from([{"$gte": 1}, {"$in": [1, None]}, {"a": {"$exists": True}}]),
    "$pullAll": st.lists(values, max_size=3),
    "$push": values | clauses,
    "$rename": paths,
    "$set": values,
    "$setOnInsert": values,
    "$unset": st.just(""),
}
modifiers = st.sampled_from(sorted(arguments)).flatmap(
    lambda name: st.tuples(st.just(name), st.dictionaries(paths, arguments[name], max_size=2))
)
updates = st.lists(modifiers, min_size=1, max_size=3).map(dict)


def parsed(update: Any) -> Any:
    """The update, with an array filter if a path needs one; None if it is a client's error."""
    try:
        return parse_update(update, array_filters=[{"i": {"$ne": 1}}] if "$[i]" in repr(update) else None)
    except CommandError:
        return None


@given(documents, updates)
@examples(300)
def test_the_logged_diff_gives_the_document(document: dict[str, Any], update: dict[str, Any]) -> None:
    operation = parsed(update)
    before = encode(document)
    if operation is None:
        return
    try:
        applied = operation.apply(document, UpdateContext(7, Timestamp(9, 1), positional="1"))
    except CommandError:
        assert encode(document) == before
        return
    assert encode(document) == before
    if applied.change is None:
        assert applied.document is document
        return
    assert not isinstance(applied.change, Replaced)
    assert isinstance(applied.change, Diff)
    diff = decode(encode(applied.change.entry))["diff"]
    assert identical(diff, applied.change.diff)
    assert identical(apply_diff(document, diff), applied.document)
    described = describe(diff, expanded=True)
    assert described["updatedFields"] or described["removedFields"]
    again = operation.apply(document, UpdateContext(7, Timestamp(9, 1), positional="1"))
    assert identical(again.document, applied.document)


@given(documents, updates)
@examples(300)
def test_updates_of_raw_documents_give_what_the_walk_gives(document: dict[str, Any], update: dict[str, Any]) -> None:
    operation, context = parsed(update), UpdateContext(7, Timestamp(9, 1), positional="1")
    raw = None
    if operation is not None and operation.kind == "operators":
        raw = operation.apply_raw(encode(document), context)
    if operation is not None and raw is not None:
        applied = operation.apply(decode(encode(document)), context)
        assert raw == (encode(applied.document), encode(applied.change.entry) if applied.change else b"")


@given(documents, updates)
@examples(150)
def test_upserts_give_documents_or_client_errors(document: dict[str, Any], update: dict[str, Any]) -> None:
    operation = parsed(update)
    if operation is None:
        return
    condition = {name: value for name, value in document.items() if name != "_id"}
    try:
        made = upsert_document(operation, condition, UpdateContext(7, Timestamp(9, 1), inserting=True))
    except CommandError:
        return
    assert next(iter(made)) == "_id"
    encode(made)
