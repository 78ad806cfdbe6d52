"""The writing end of `$out` and `$merge`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bson import ObjectId, Timestamp

from headrace.dispatch.context import CommandContext
from headrace.dispatch.namespaces import check_namespace, writable
from headrace.errors import CommandError
from headrace.execution.plan import Finder
from headrace.query.update import Diff, Update, UpdateContext, parse_update
from headrace.store import catalog_changes
from headrace.store.catalog import Collection
from headrace.values.bson import encode


def write_output(
    context: CommandContext, namespace: str, stage: Any, documents: Iterator[dict[str, Any]]
) -> Iterator[bytes]:
    """Write what leaves the pipeline as its last stage says; the command's own answer is empty."""
    writes = stage.writes
    goal = check_namespace(f"{writes.database}.{writes.collection}")
    collection = writable(context, goal)
    made = list(documents)
    if writes.kind == "out":
        _out(context, goal, collection, made)
    else:
        for document in made:
            _merge(context, goal, writes, document)
    return iter(())


def _out(context: CommandContext, goal: str, old: Collection | None, documents: list[dict[str, Any]]) -> None:
    """Replace the collection: the documents go into a new one that takes the old one's name, options and indexes."""
    txn = context.txn
    temporary = f"{goal.partition('.')[0]}.tmp.agg_out.{ObjectId()}"
    options = {} if old is None else dict(old.options)
    new = catalog_changes.create(txn, temporary, options)
    if old is not None and len(old.indexes) > 1:
        catalog_changes.create_indexes(txn, new, [index.spec for index in old.indexes if index.name != "_id_"])
    for document in documents:
        txn.insert(new, encode(document))
    catalog_changes.rename(txn, new, goal, old)


def _merge(context: CommandContext, goal: str, writes: Any, document: dict[str, Any]) -> None:
    txn = context.txn
    collection = txn.collection(goal) or catalog_changes.create(txn, goal, {})
    if "_id" not in document and writes.on == ("_id",):
        document = {"_id": ObjectId(), **document}
    _check_on(collection, writes.on)
    spec = {path: document.get(path) for path in writes.on}
    match = next(Finder(collection, spec, None).find(txn), None)
    result = writes.decide(None if match is None else match[2], document)
    if result is None or (match is not None and result == match[2]):
        return
    if match is None:
        txn.insert(collection, encode(result))
        return
    record, raw, existing = match
    if result.get("_id") != existing["_id"]:
        raise CommandError(66, "$merge failed to update the matching document, did you attempt to modify the _id?")
    applied = _change(writes, document, result).apply(existing, UpdateContext(txn.wall_ms, Timestamp(0, 0)))
    if applied.change is None:
        return
    new = encode(applied.document)
    logged = encode(applied.change.entry) if type(applied.change) is Diff else new
    txn.replace(collection, record, raw, new, logged)


def _change(writes: Any, document: dict[str, Any], result: dict[str, Any]) -> Update:
    """The update that a merge of `document` is, as MongoDB logs it: fields set, a replacement, or a pipeline."""
    if writes.when_matched == "merge":
        return parse_update({"$set": {name: value for name, value in document.items() if name != "_id"}})
    if writes.when_matched == "replace":
        return parse_update(result)
    return parse_update([{"$replaceWith": {"$literal": result}}])


def _check_on(collection: Collection, on: tuple[str, ...]) -> None:
    """`on` must be what a unique index is on."""
    if on == ("_id",) or any(set(index.spec["key"]) == set(on) for index in collection.unique_indexes):
        return
    raise CommandError(51183, "Cannot find index to verify that join fields will be unique")
