"""A keyword or a field of an event that is spelled wrong names the public function, and the nearest right one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headrace


@pytest.fixture(scope="module")
def store() -> Iterator[Any]:
    with headrace.open() as opened:
        yield opened


CALLS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda store: headrace.Server(prot=1), "Server() got an unexpected keyword argument 'prot'. Did you mean 'port'?"),
    (lambda store: headrace.Server(dbpath="x"), "Server() got an unexpected keyword argument 'dbpath'. Did you mean"),
    (lambda store: headrace.Server(zzz=1), "Server() got an unexpected keyword argument 'zzz'"),
    (lambda store: headrace.open(oplogHours=1), "open() got an unexpected keyword argument 'oplogHours'. Did you mean "
     "'oplog_hours'?"),
    (lambda store: headrace.open_async(codec_option=1), "open_async() got an unexpected keyword argument "
     "'codec_option'. Did you mean 'codec_options'?"),
    (lambda store: headrace.connect(server_options={"prot": 1}), "Server() got an unexpected keyword argument 'prot'"),
    (lambda store: store.watch(operationTypes=["insert"]), "watch() got an unexpected keyword argument "
     "'operationTypes'. Did you mean 'operation_types'?"),
    (lambda store: store.shop.watch(fullDocument="x"), "watch() got an unexpected keyword argument 'fullDocument'. "
     "Did you mean 'full_document'?"),
    (lambda store: store.shop.orders.watch(everything=True), "watch() got an unexpected keyword argument 'everything'"),
    (lambda store: store.shop.orders.find({}, sorted=1), "find() got an unexpected keyword argument 'sorted'. "
     "Did you mean 'sort'?"),
    (lambda store: store.shop.orders.find_one({}, sorted=1), "find() got an unexpected keyword argument 'sorted'"),
    (lambda store: store.shop.orders.insert_one({}, sesion=1), "EmbeddedCollection.insert_one() got an unexpected "),
    (lambda store: store.shop.orders.aggregate([], batchsize=1), "aggregate.batchsize"),
    (lambda store: store.serve(prot=1), "serve() got an unexpected keyword argument 'prot'. Did you mean 'port'?"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_a_wrong_keyword_names_the_public_function_and_the_nearest_keyword(
    store: Any, call: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(Exception) as raised:
        call(store)
    assert message in str(raised.value)
    assert isinstance(raised.value, TypeError) or "aggregate" in message


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        ({"collection": "orders"}, "a change event has no field 'collection': use 'ns.coll'"),
        ({"database": "shop"}, "no field 'database': use 'ns.db'"),
        ({"operationtype": "insert"}, "no field 'operationtype': use 'operationType'"),
        ({"status": "paid"}, "no field 'status': a field of the document is 'fullDocument.status'"),
        ({"ns.collection": "orders"}, "no field 'ns.collection': use 'ns.coll'"),
        ({"updateDescription.updated.a": 1}, "no field 'updateDescription.updated': use "),
        ({"$or": [{"ns.coll": "a"}, {"$and": [{"coll": "b"}]}]}, "no field 'coll': use 'ns.coll'"),
    ],
)
def test_a_filter_names_only_fields_that_events_have(store: Any, filter: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="a change event") as raised:
        store.shop.orders.watch(filter=filter)
    assert message in str(raised.value)


def test_a_filter_may_use_every_field_of_an_event(store: Any) -> None:
    names = [
        "_id", "_id._data", "clusterTime", "wallTime", "ns", "ns.db", "to.coll", "nsType", "documentKey._id", "lsid.id",
        "txnNumber", "collectionUUID", "operationDescription.indexes", "fullDocument.a.b", "fullDocumentBeforeChange.a",
        "updateDescription.updatedFields.a", "updateDescription.disambiguatedPaths", "stateBeforeChange", "splitEvent",
    ]  # fmt: skip
    filter: dict[str, Any] = {"$nor": [{name: "no such value"} for name in names], "$expr": {"$eq": ["$a", "$b"]}}
    with store.shop.orders.watch(filter=filter | {"$comment": "all"}) as stream:
        store.shop.orders.insert_one({"a": 1})
        assert stream.try_next().operation_type == "insert"
