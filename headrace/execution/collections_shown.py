"""Collections and views as `listCollections` and `$listClusterCatalog` show them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from bson import Binary

from headrace.dispatch.context import CommandContext
from headrace.dispatch.namespaces import VERSIONS
from headrace.execution.time_series import buckets_of, shown_options
from headrace.store.catalog import Collection
from headrace.store.view import View

OPLOG_UUID: Final = bytes.fromhex("d0678cd09d025541be3d15095bafbede")
"""The version 5 UUID of the URL `headrace:local.oplog.rs`."""
VERSIONS_UUID: Final = bytes.fromhex("ec661ae20deb5cd383cae09fa0cdd771")
"""The version 5 UUID of the URL `headrace:admin.system.version`, for the collection while it is empty."""


def collections_shown(context: CommandContext, database: str) -> list[dict[str, Any]]:
    """Return the collections and views of a database, as `listCollections` shows them."""
    there = context.paced(context.view.catalog.in_database(database))
    shown = [_shown(context.view, collection) for collection in there]
    if database == "local" and context.store.oplog_enabled:
        shown.append(_oplog(context))
    if (uuid := context.view.catalog.views.get(database)) is not None:
        shown.append(_system("system.views", uuid))
    if database == "admin" and context.view.collection(VERSIONS) is None:
        shown.append(_system("system.version", VERSIONS_UUID))
    return shown


def catalog_shown(context: CommandContext, database: str, spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the documents of `$listClusterCatalog`; on `admin`, for all databases. No collection is sharded."""
    names = {database}
    if database == "admin":
        names |= {*context.view.catalog.databases(), *(["local"] if context.store.oplog_enabled else [])}
    for name in sorted(names):
        for item in collections_shown(context, name):
            document = {"db": name, "ns": f"{name}.{item['name']}", **item, "sharded": False}
            del document["name"]
            if spec.get("shards"):
                document["shards"] = []
            if spec.get("balancingConfiguration"):
                document["balancingConfiguration"] = {}
            yield document


def _shown(view: View, collection: Collection) -> dict[str, Any]:
    """Return a collection, view or time series as listCollections shows it."""
    if (buckets := buckets_of(view, collection, must_exist=False)) is not None:
        options = shown_options(buckets.collection)
        return {"name": collection.name, "type": "timeseries", "options": options, "info": {"readOnly": False}}
    if collection.is_view:
        return {
            "name": collection.name, "type": "view", "options": collection.options, "info": {"readOnly": True},
        }  # fmt: skip
    assert collection.uuid is not None
    id_index = next((index.spec for index in collection.indexes if index.is_of_id and not collection.clustered), None)
    options = collection.options
    if "timeseries" in options:
        options = {**options, "clusteredIndex": True}  # the form of MongoDB's own clustered collections
    shown = {
        "name": collection.name, "type": "collection", "options": options,
        "info": {"readOnly": False, "uuid": Binary(collection.uuid, 4)},
    }  # fmt: skip
    return shown if id_index is None else {**shown, "idIndex": id_index}


def _oplog(context: CommandContext) -> dict[str, Any]:
    options = {"capped": True, "size": float(context.engine.oplog_bytes_max or 0), "autoIndexId": False}
    if context.engine.parameters["oplogEntriesMax"]:
        options["max"] = context.engine.parameters["oplogEntriesMax"]
    return {
        "name": "oplog.rs", "type": "collection", "options": options,
        "info": {"readOnly": False, "uuid": Binary(OPLOG_UUID, 4)},
    }  # fmt: skip


def _system(name: str, uuid: bytes) -> dict[str, Any]:
    return {
        "name": name, "type": "collection", "options": {},
        "info": {"readOnly": False, "uuid": Binary(uuid, 4)},
        "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"},
    }  # fmt: skip
