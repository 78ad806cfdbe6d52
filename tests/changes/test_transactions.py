"""Transactions in the oplog, unwound: chains, prepared ones, what is counted, and lost history."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Binary, Int64

from headrace.changes.entry import DecodedEntry
from headrace.errors import CommandError
from headrace.values.bson import decode
from headrace.values.token import decode_token
from tests.changes.oplog import (
    NO_PREVIOUS,
    SESSION,
    UUID,
    Documents,
    StoredImages,
    at,
    documents,
    entry,
    events_in,
    inside,
    stream,
    time,
    transaction,
)  # fmt: skip


def put(key: Any, ns: str = "d.c") -> dict[str, Any]:
    return inside("i", {"_id": key}, {"_id": key}, ns=ns)


def previous(increment: int) -> dict[str, Any]:
    return {"ts": time(increment), "t": Int64(1)}


FIRST = transaction(put(1), put(2), increment=1, more_o={"partialTxn": True})
SECOND = transaction(put(3), increment=2, more_o={"partialTxn": True}, previous=previous(1))
LAST = transaction(put(4), put(5), increment=3, more_o={"count": Int64(5)}, previous=previous(2))


def test_a_chain_is_reported_at_its_last_entry_in_order_and_with_its_time() -> None:
    events = events_in(stream(), FIRST, SECOND, LAST, history=StoredImages(_1=FIRST, _2=SECOND))
    result = documents(events)
    assert [document["documentKey"]["_id"] for document in result] == [1, 2, 3, 4, 5]
    assert {document["clusterTime"] for document in result} == {time(3)}
    indexes = [decode_token(decode(event.token_document)).txn_op_index for event in events]
    assert indexes == [0, 1, 2, 3, 4]


def test_a_chain_whose_beginning_is_gone_is_error_286() -> None:
    with pytest.raises(CommandError) as caught:
        events_in(stream(), LAST, history=StoredImages(_2=SECOND))
    assert caught.value.code == 286
    assert caught.value.labels == ("NonResumableChangeStreamError",)
    assert caught.value.message.startswith("Oplog no longer has history necessary for $changeStream to observe")


def test_a_prepared_transaction_is_reported_when_it_is_committed() -> None:
    prepared = transaction(put(1), increment=1, more_o={"prepare": True})
    commit = entry(
        "c", "admin.$cmd", {"commitTransaction": 1, "commitTimestamp": time(1)}, uuid=None, increment=4,
        before={"lsid": SESSION, "txnNumber": Int64(7)}, after={"prevOpTime": previous(1)},
    )  # fmt: skip
    (result,) = documents(events_in(stream(), prepared, commit, history=StoredImages(_1=prepared)))
    assert result["clusterTime"] == time(4)
    assert result["txnNumber"] == 7


def test_an_aborted_transaction_has_no_events() -> None:
    abort = entry(
        "c", "admin.$cmd", {"abortTransaction": 1}, uuid=None,
        before={"lsid": SESSION, "txnNumber": Int64(7)}, after={"prevOpTime": NO_PREVIOUS},
    )  # fmt: skip
    assert events_in(stream(), abort) == []


def test_operations_out_of_scope_are_counted() -> None:
    (event,) = events_in(stream(), transaction(put(1, "d.other"), put(2)))
    assert decode_token(decode(event.token_document)).txn_op_index == 1


def test_images_of_a_transaction_are_stored_under_the_entry_and_index_of_their_operation() -> None:
    first = transaction(inside("d", {"_id": 1}), increment=1, more_o={"partialTxn": True})
    last = transaction(
        put(2), inside("d", {"_id": 2}), increment=2, more_o={"count": Int64(3)}, previous=previous(1)
    )  # fmt: skip
    lookup = Documents(None, {"_id": 0})
    events_in(stream(fullDocumentBeforeChange="required"), last, history=StoredImages(_1=first), lookup=lookup)
    assert lookup.asked == [(UUID, at(1), 0), (UUID, at(2), 1)]


def test_a_collection_created_in_a_transaction_is_reported_among_its_operations() -> None:
    create = {"op": "c", "ns": "d.$cmd", "ui": Binary(UUID, 4), "o": {"create": "c"}}
    result = documents(events_in(stream(showExpandedEvents=True), transaction(create, put(1))))
    assert [document["operationType"] for document in result] == ["create", "insert"]
    assert list(result[0])[:3] == ["txnNumber", "lsid", "_id"]


def test_an_insert_without_its_key_gets_it_from_the_document() -> None:
    (result,) = documents(events_in(stream(), transaction(inside("i", {"a": 1, "_id": "k"}))))
    assert result["documentKey"] == {"_id": "k"}


def test_an_entry_is_unwound_once() -> None:
    wrapped = DecodedEntry(transaction(put(1)))
    assert wrapped.operations() is wrapped.operations()
