"""The store's entries are taken apart by slicing, and everything else by walking, with the same result."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Int64, ObjectId

from headrace.changes.entry import DecodedEntry
from headrace.changes.operation import head_bytes, head_of, sliced
from headrace.store import entries
from headrace.values.bson import encode
from tests.changes.oplog import (
    SESSION,
    UUID,
    at,
    command,
    delete,
    documents,
    entry,
    events_in,
    insert,
    replace,
    stream,
    update,
)  # fmt: skip

WALL_MS = 1_700_000_000_123
DOCUMENT = {"_id": ObjectId("64b000000000000000000001"), "a": [1, {"b": "ü"}], "o2": {"ts": 1}}
KEY = encode({"_id": DOCUMENT["_id"]})
HEADS = {op: entries.crud_head(op, "d.c", UUID) for op in "iud"}
TAIL = entries.tail(at(1), WALL_MS)


@pytest.mark.parametrize("statement", [None, (0, 0), (5, at(0))])
@pytest.mark.parametrize("session", [False, True])
def test_entries_as_the_store_writes_them_are_sliced(statement: tuple[int, int] | None, session: bool) -> None:
    before = entries.session_head(encode(SESSION), 3) if session else b""
    diff = encode({"$v": 2, "diff": {"u": {"a": 2}}})

    def written(op: str, o: bytes, o2: bytes | None) -> bytes:
        if statement is None:
            return entries.entry(before + HEADS[op], o, o2, TAIL)
        return entries.retried_entry(before, HEADS[op], o, o2, at(1), entries.end(WALL_MS), statement)

    made = {
        "insert": written("i", encode(DOCUMENT), KEY), "update": written("u", diff, KEY),
        "replace": written("u", encode(DOCUMENT), KEY), "delete": written("d", KEY, None),
    }  # fmt: skip
    for kind, data in made.items():
        operation = sliced(data)
        assert operation is not None, kind
        assert operation.head is not None
        assert operation.head.kind == kind
        assert operation.o2 == KEY
        head = head_of(head_bytes(data))
        assert head is not None
        assert operation.head in (head, head.replacement)
        (result,) = documents(events_in(stream(), data))
        assert result["operationType"] == kind
        assert result["documentKey"] == {"_id": DOCUMENT["_id"]}


def test_many_inserts_of_one_batch_are_sliced() -> None:
    keys = [encode({"_id": number}) for number in range(3)]
    made = entries.insert_entries(HEADS["i"], keys, keys, at(1), WALL_MS, (4, 0))
    result = documents(events_in(stream(), *made))
    assert [document["fullDocument"]["_id"] for document in result] == [0, 1, 2]


UNUSUAL = [
    insert({"_id": 1}, middle={"destinedRecipient": "x"}),
    insert({"_id": 1}, before={"tid": 1}),
    entry("i", "d.c", {"_id": 1, "a": 2}),
    insert({"_id": 1}, middle={"needsRetryImage": "preImage", "stmtId": 1}),
]


@pytest.mark.parametrize("data", UNUSUAL)
def test_entries_of_another_shape_are_walked_to_the_same_event(data: bytes) -> None:
    assert sliced(data) is None
    (result,) = documents(events_in(stream(), data))
    assert list(result) == ["_id", "operationType", "clusterTime", "wallTime", "fullDocument", "ns", "documentKey"]
    assert result["documentKey"] == {"_id": 1}


@pytest.mark.parametrize(
    "data",
    [
        command({"drop": "c"}), entry("n", "", {"msg": "periodic noop"}, uuid=None),
        entry("c", "admin.$cmd", {"applyOps": []}),
    ],
)  # fmt: skip
def test_what_is_no_change_of_a_document_is_not_sliced(data: bytes) -> None:
    assert sliced(data) is None
    assert head_of(head_bytes(data)) is None


def test_the_head_of_a_collection_is_learnt_once() -> None:
    first, second = sliced(insert({"_id": 1})), sliced(insert({"_id": 2}, increment=2))
    assert first is not None
    assert second is not None
    assert first.head is second.head


def test_a_replacement_with_a_field_like_an_updates_is_still_a_replacement() -> None:
    data = [replace({"_id": 1, "$v": 2}), replace({"_id": 1, "diff": {"u": {}}}), update(1, {"u": {"a": 1}})]
    kinds = [document["operationType"] for document in documents(events_in(stream(), *data))]
    assert kinds == ["replace", "replace", "update"]


def test_two_shapes_of_one_entry_are_independent() -> None:
    from headrace.changes.builder import EventBuilder
    from tests.changes.oplog import Documents

    wrapped = DecodedEntry(delete(Int64(1)))
    builders = [EventBuilder(stream(**options), Documents()) for options in ({}, {"showExpandedEvents": True}) * 2]
    result: list[Any] = [builder.build(wrapped)[0] for builder in builders]
    assert result[0] is result[2]
    assert result[1] is result[3]
    assert result[0].document != result[1].document
