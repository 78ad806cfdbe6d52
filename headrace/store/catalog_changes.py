"""Changes of the catalog with their oplog entries: create, drop, rename, collMod, indexes, views.

Rule: the caller (`commands/catalog/`) checks everything before it calls the first function here.

The documents of a dropped collection and the keys of a dropped index are deleted in the background. `drop` adds the
number to the garbage, and each transaction of `collect_garbage` removes a bounded number of rows.

    meta   "garbage" + collection or index number (4)   → b""

Source of the entries' shapes: MongoDB's oplog, as listed in the change streams reference.
"""

from __future__ import annotations

from typing import Any, Final

from bson import Binary

from headrace import limits
from headrace.errors import CommandError
from headrace.store.catalog import Collection, Index
from headrace.store.entries import crud_head, entry, tail
from headrace.store.indexes import index_builds
from headrace.store.view import View
from headrace.store.write_transaction import WriteTransaction
from headrace.values.bson import encode

ID_INDEX: Final[dict[str, Any]] = {"v": 2, "key": {"_id": 1}, "name": "_id_"}
VIEWS: Final = "system.views"
_GARBAGE: Final = b"garbage"
ABORTED_BY_DROP: Final = CommandError(276, "collection dropped")


def id_index_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return the specification of a collection's index on `_id`, as listIndexes shows it. `options`: the
    collection's."""
    clustered = options.get("clusteredIndex")
    spec = dict(ID_INDEX if clustered is None else clustered)
    if "collation" in options:
        spec["collation"] = options["collation"]
    if clustered is not None:
        if "expireAfterSeconds" in options:
            spec["expireAfterSeconds"] = options["expireAfterSeconds"]
        spec["clustered"] = True
    return spec


def require_room(txn: WriteTransaction, size: int) -> None:
    """Raise 146 where the catalog, which is in memory, has no room for a definition of `size` bytes of BSON."""
    if size <= limits.DEFINITION_BYTES_FREE:
        return
    most = int(txn.store.memory.bytes_max * limits.DEFINITIONS_SHARE)
    if txn.catalog.definition_bytes(txn.kv) + size > most:
        raise CommandError(
            146,
            f"long definitions of collections, views and indexes may have {most} bytes in all, a fortieth of the "
            f"server's memory limit, and there is no room for {size} more",
        )


def create(
    txn: WriteTransaction, namespace: str, options: dict[str, Any], uuid: bytes | None = None
) -> Collection:  # fmt: skip
    """Create a collection. `options` are in the form of `create` and `listCollections`. No `uuid`: make a new one."""
    id_index = id_index_of(options)
    collection = txn.catalog.create(txn.kv, namespace, "collection", options, id_index, uuid=uuid)
    shown = {} if collection.clustered else {"idIndex": id_index}
    txn.log_command(collection.database, collection.uuid, {"create": collection.name, **options, **shown})
    return collection


def create_view(txn: WriteTransaction, namespace: str, options: dict[str, Any]) -> Collection:
    """Create a view. The oplog shows an insert into `<database>.system.views`; the first view creates that
    collection."""
    view = txn.catalog.create(txn.kv, namespace, "view", options, None)
    _note_view(txn, "create", view)
    _log_view(txn, view, "i", {"_id": namespace, **options}, None)
    return view


def modify_view(txn: WriteTransaction, view: Collection, options: dict[str, Any]) -> None:
    """Replace the options of a view. The oplog shows an update of the view's document in `system.views`."""
    view = txn.catalog.save(txn.kv, txn.catalog.current(view).changed(options=options))
    _note_view(txn, "collMod", view)
    _log_view(txn, view, "u", {"_id": view.namespace, **options}, {"_id": view.namespace})


def _note_view(txn: WriteTransaction, command: str, view: Collection) -> None:
    txn.catalog_changes.append((view.database, {command: view.name, "viewOn": view.options.get("viewOn")}))


def _log_view(
    txn: WriteTransaction, view: Collection, operation: str, o: dict[str, Any], o2: dict[str, Any] | None
) -> None:
    namespace = f"{view.database}.system.views"
    uuid = txn.catalog.views.get(view.database) or _create_views(txn, view.database)
    position = txn.reserve(1)
    head = crud_head(operation, namespace, uuid)
    second = {"_id": view.namespace} if operation == "i" else o2
    made = entry(head, encode(o), None if second is None else encode(second), tail(position, txn.wall_ms))
    txn.log(position, made, (namespace, f"{view.database}.$cmd"))


def require_views(txn: WriteTransaction, database: str, uuid: bytes | None) -> None:
    """Create `<database>.system.views` if it is missing. `uuid` None: make a new one."""
    if database not in txn.catalog.views:
        _create_views(txn, database, uuid)


def _create_views(txn: WriteTransaction, database: str, uuid: bytes | None = None) -> bytes:
    """Create `<database>.system.views`, which is only a name in the catalog; return its UUID."""
    uuid = txn.catalog.add_views(txn.kv, database, uuid)
    txn.log_command(database, uuid, {"create": VIEWS, "idIndex": ID_INDEX})
    return uuid


def drop_views(txn: WriteTransaction, database: str) -> None:
    """Drop `<database>.system.views` if it exists, after its views. Writes one entry."""
    uuid = txn.catalog.remove_views(txn.kv, database)
    if uuid is not None:
        txn.log_command(database, uuid, {"drop": VIEWS}, {"numRecords": 0})


def drop(txn: WriteTransaction, collection: Collection) -> None:
    """Drop a collection or view. Writes one entry."""
    if collection.is_view:
        txn.catalog.remove(txn.kv, collection)
        _note_view(txn, "drop", collection)
        _log_view(txn, collection, "d", {"_id": collection.namespace}, None)
        return
    count = txn.count(collection)
    _discard(txn, collection)
    txn.catalog.remove(txn.kv, collection)
    txn.log_command(collection.database, collection.uuid, {"drop": collection.name}, {"numRecords": count})


def _discard(txn: WriteTransaction, collection: Collection) -> None:
    collection = txn.catalog.current(collection)
    for build in txn.catalog.builds_on(collection):
        index_builds.abort(txn, build, ABORTED_BY_DROP)
    for index in collection.maintained:
        discard_index(txn, index)
    txn.count_change(collection)  # the commit then forgets the count
    txn.kv.put(_GARBAGE + collection.number_key, b"", db=txn.tables["meta"])


def discard_index(txn: WriteTransaction, index: Index) -> None:
    """Mark the rows stored under the index's number as garbage."""
    txn.kv.put(_GARBAGE + index.number.to_bytes(4, "big"), b"", db=txn.tables["meta"])


def _garbage(view: View) -> bytes | None:
    """Return the number of a dropped collection or index that still has rows; None if there is none."""
    with view.kv.cursor(view.tables["meta"]) as cursor:
        if cursor.set_range(_GARBAGE) and cursor.key().startswith(_GARBAGE):
            return cursor.key()[len(_GARBAGE) :]
    return None


def has_garbage(view: View) -> bool:
    """Return whether dropped collections or indexes still have rows."""
    return _garbage(view) is not None


def collect_garbage(txn: WriteTransaction, count_max: int) -> bool:
    """Remove up to `count_max` rows of dropped collections and indexes; True if some are left."""
    number = _garbage(txn)
    if number is None:
        return False
    left = count_max
    for table in ("documents", "ids", "indexes"):
        with txn.kv.cursor(txn.tables[table]) as cursor:
            moved = cursor.set_range(number)
            while moved and left and cursor.key()[:4] == number:
                cursor.delete()
                left -= 1
                moved = bool(cursor.key())
    if left:
        txn.kv.delete(_GARBAGE + number, db=txn.tables["meta"])
        txn.store.next_records.pop(int.from_bytes(number, "big"), None)
    return True


def rename(txn: WriteTransaction, source: Collection, namespace: str, target: Collection | None) -> None:
    """Rename a collection to `namespace` and drop `target`, if given. Writes one entry, indexed under both
    databases."""
    before, database, uuid = source.namespace, source.database, source.uuid
    o: dict[str, Any] = {"renameCollection": before, "to": namespace, "stayTemp": False}
    o2 = None
    if target is not None:
        assert target.uuid is not None
        o["dropTarget"] = Binary(target.uuid, 4)
        o2 = {"numRecords": txn.count(target)}
        _discard(txn, target)
        txn.catalog.remove(txn.kv, target)
    renamed = txn.catalog.rename(txn.kv, source, namespace)
    txn.log_command(database, uuid, o, o2, also=(renamed.database,))


def create_capped(txn: WriteTransaction, source: Collection, namespace: str, bytes_max: int) -> Collection:
    """Create an empty capped collection with the source's options and only the index on `_id`."""
    require_room(txn, len(source.record()))
    return create(txn, namespace, {**source.options, "capped": True, "size": bytes_max})


def modify(
    txn: WriteTransaction, collection: Collection, change: dict[str, Any], options: dict[str, Any],
    index: Index | None = None, index_before: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """Apply collMod. `change` is the client's request and `options` the collection's new options. `index` is the
    changed index in its new form, and `index_before` its old options."""
    assert collection.uuid is not None
    o2: dict[str, Any] = {"collectionOptions_old": {**collection.encoded_options, "uuid": Binary(collection.uuid, 4)}}
    if index_before is not None:
        o2["indexOptions_old"] = index_before
    collection = txn.catalog.current(collection)
    indexes = tuple(index if index and item.number == index.number else item for item in collection.indexes)
    collection = txn.catalog.save(txn.kv, collection.changed(options=options, indexes=indexes))
    if "validator" in change:
        change = {**change, "validator": collection.encoded_options["validator"]}
    txn.log_command(collection.database, collection.uuid, {"collMod": collection.name, **change}, o2)


def create_indexes(txn: WriteTransaction, collection: Collection, specs: list[dict[str, Any]]) -> None:
    """Add indexes to an empty collection. Writes an entry for each."""
    made = [Index(txn.catalog.new_number(txn.kv), spec) for spec in specs]
    collection = txn.catalog.current(collection)
    collection = txn.catalog.save(txn.kv, collection.changed(indexes=(*collection.indexes, *made)))
    for spec in specs:
        o = {"createIndexes": collection.name, **logged_spec(spec)}
        txn.log_command(collection.database, collection.uuid, o)


def log_build(
    txn: WriteTransaction, collection: Collection, name: str, build: bytes, specs: list[dict[str, Any]], **more: Any
) -> None:
    """Write the entry for a step of a build: `startIndexBuild`, `commitIndexBuild` or `abortIndexBuild`."""
    o = {name: collection.name, "indexBuildUUID": Binary(build, 4), "indexes": [logged_spec(spec) for spec in specs]}
    txn.log_command(collection.database, collection.uuid, o | more)


def logged_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """Return an index specification in the field order of the oplog: `unique` before the key."""
    return {"v": spec["v"], "unique": True, **spec} if spec.get("unique") else spec


def drop_index(txn: WriteTransaction, collection: Collection, index: Index) -> None:
    """Drop an index. Writes one entry."""
    if index.has_entries:
        discard_index(txn, index)
    collection = txn.catalog.current(collection)
    left = tuple(item for item in collection.indexes if item.number != index.number)
    txn.catalog.save(txn.kv, collection.changed(indexes=left))
    txn.log_command(
        collection.database,
        collection.uuid,
        {"dropIndexes": collection.name, "index": index.name},
        logged_spec(index.spec),
    )
