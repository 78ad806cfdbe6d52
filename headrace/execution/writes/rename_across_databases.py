"""Renaming a collection into another database: copy it in turns while clients write, then rename it in one turn.

    copy        copy all documents piece by piece, in natural order, into a temporary collection, with oplog entries
    catch up    copy the documents again that changed meanwhile, by the oplog, until nothing is left in one turn
    rename      in the transaction of that turn, give the copy the name and drop the source

So the copy has every write to the source that was acknowledged before the rename, and no client waits. A temporary
collection left by a crash is dropped, as for `$out`. Without an oplog, the whole copy is one turn.
"""

from __future__ import annotations

import uuid as uuids

from headrace.dispatch.context import CommandContext
from headrace.errors import CommandError
from headrace.execution.storage_stats import count_of
from headrace.execution.writes.changed_documents import ChangedDocuments, CopyRound, insert_copy
from headrace.execution.writes.matches import Target, measure
from headrace.execution.writes.output import temporary_collection
from headrace.store import catalog_changes
from headrace.store.catalog import Collection
from headrace.store.identity import identify
from headrace.store.view import LEFT_OUT


def move(context: CommandContext, source: Collection, goal: str, *, drops_target: bool) -> None:
    """Rename `source` to `goal`, in another database. Raise 48 if `goal` exists and must not be dropped, 175 if the
    source's options or indexes change, or it is renamed or dropped meanwhile, 11000 if documents share a key of an
    index with `prepareUnique`."""
    temporary = f"{goal.partition('.')[0]}.tmp{uuids.uuid4().hex[:5]}.renameCollection"
    with temporary_collection(context, temporary):
        _move(context, source, temporary, goal, drops_target=drops_target)


def _move(context: CommandContext, source: Collection, temporary: str, goal: str, *, drops_target: bool) -> None:
    target = Target(context, source)
    changed = ChangedDocuments(context, target)
    count_of(context, source)
    copy = Target(context, catalog_changes.create(context.txn, temporary, dict(source.options)))
    indexes = [index.spec for index in source.indexes if not index.is_of_id]
    if indexes:
        catalog_changes.create_indexes(context.txn, copy.collection, indexes)
    measure(context, copy)
    _copy(context, target, copy, changed.left)
    for changes in changed.rounds(source.namespace, goal):
        _copy_again(context, target, copy, changes)
    existing = context.txn.collection(goal)
    if existing is not None and (not drops_target or existing.is_view):
        raise CommandError(48, "target namespace exists")
    catalog_changes.rename(context.txn, copy.collection, goal, existing)
    catalog_changes.drop(context.txn, target.collection)


def _copy(context: CommandContext, target: Target, copy: Target, left: dict[bytes, CommandError]) -> None:
    after: bytes | None = None
    while piece := context.view.scan_chunk(target.collection, after=after):
        for after, document in piece:  # noqa: B007  (the scan continues there)
            if document is not LEFT_OUT and (error := insert_copy(context, copy, document)):
                left[identify(document)[0]] = error


def _copy_again(context: CommandContext, target: Target, copy: Target, changes: CopyRound) -> None:
    """Copy the changed documents that exist, and remove the others from the copy."""
    for key in changes:  # remove all first: documents may have exchanged values of unique indexes
        before = context.txn.by_id(copy.collection, key)
        if before is not None:
            context.txn.delete(copy.collection, *before)
    for key in changes:
        now = context.txn.by_id(target.collection, key)
        if now is not None and (error := insert_copy(context, copy, now[1])):
            changes.left[key] = error
