"""Copies of a collection, made in turns, for `convertToCapped`, `cloneCollectionAsCapped` and renames into another
database.

    copy        copy the newest documents that fit, the oldest of them first; for a rename all
    catch up    repeat on the copy what clients did to the collection meanwhile, by the oplog, until nothing is left in
                one turn
    rename      except for `cloneCollectionAsCapped`: in the transaction of that turn, give the copy the name

So the copy has the documents that the collection has at the end of the command: every acknowledged write. Events are as
MongoDB's: a create and an insert for each document, of a temporary name if a rename follows. Clients may use the
collection meanwhile; on MongoDB they wait. A temporary collection left by a crash is dropped, as for `$out`. Without an
oplog, the whole copy is one turn.
"""

from __future__ import annotations

import uuid as uuids

from headrace.dispatch.context import CommandContext
from headrace.errors import CommandError
from headrace.execution.storage_stats import count_of
from headrace.execution.writes.changed_documents import ChangedDocuments, CopyRound, insert_copy
from headrace.execution.writes.matches import Target, measure
from headrace.execution.writes.output import temporary_collection
from headrace.store import capped, catalog_changes
from headrace.store.catalog import Collection
from headrace.store.identity import identify
from headrace.store.view import LEFT_OUT


def convert(context: CommandContext, source: Collection, bytes_max: int) -> None:
    """Replace a collection by a capped copy. Raise 175 if its options or indexes change, or it is renamed or dropped
    meanwhile."""
    temporary = f"{source.database}.tmp{uuids.uuid4().hex[:5]}.convertToCapped.{source.name}"
    with temporary_collection(context, temporary):
        target = Target(context, source)
        copy = _copied(context, target, temporary, bytes_max, source.namespace)
        catalog_changes.rename(context.txn, copy.collection, source.namespace, target.collection)


def clone(context: CommandContext, source: Collection, goal: str, bytes_max: int) -> None:
    """Make a capped copy of a collection, `goal`. Raise 175 as `convert` does; then the copy is dropped."""
    with temporary_collection(context, goal):
        _copied(context, Target(context, source), goal, bytes_max)


def _copied(context: CommandContext, target: Target, namespace: str, bytes_max: int, *used: str) -> Target:
    """Return the copy. No client's transaction uses the collections `used` at the end."""
    changed = ChangedDocuments(context, target)
    copy = Target(context, catalog_changes.create_capped(context.txn, target.collection, namespace, bytes_max))
    measure(context, copy)
    _copy(context, target, copy, bytes_max)
    for changes in changed.rounds(*used):
        for key in changes:
            _repeat(context, target, copy, key, is_new=changes.keys[key])
    return copy


def _copy(context: CommandContext, target: Target, copy: Target, bytes_max: int) -> None:
    """Copy the newest documents that have at most `bytes_max` bytes together, or the newest one."""
    after = _before_newest(context, target, bytes_max)
    while piece := context.view.scan_chunk(target.collection, after=after):
        for after, document in piece:  # noqa: B007  (the scan continues there)
            context.tick()
            if document is not LEFT_OUT:
                insert_copy(context, copy, document)
                _make_room(context, copy)


def _before_newest(context: CommandContext, target: Target, bytes_max: int) -> bytes | None:
    """Return the record before the first document to copy; None: copy all."""
    left = bytes_max
    end: bytes | None = None
    is_newest = True
    while piece := context.view.scan_chunk(target.collection, after=end, backward=True):
        for end, document in piece:
            left -= len(document)
            if left < 0 and not is_newest:
                return end
            is_newest = is_newest and document is LEFT_OUT
    return None


def _repeat(context: CommandContext, target: Target, copy: Target, key: bytes, *, is_new: bool) -> None:
    """Make the copy's document equal to the collection's. An inserted document becomes the copy's newest."""
    txn = context.txn
    now, there = txn.by_id(target.collection, key), txn.by_id(copy.collection, key)
    if there is not None and (now is None or is_new):
        txn.delete(copy.collection, *there)
    if now is None:
        return
    if is_new:
        insert_copy(context, copy, now[1])
    elif there is not None and there[1] != now[1]:
        txn.replace(copy.collection, *there, now[1], now[1])
    _make_room(context, copy)


def _make_room(context: CommandContext, copy: Target) -> None:
    while capped.make_room(context.txn, copy.collection):
        context.tick()


# Renames into another database.


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
    _copy_all(context, target, copy, changed.left)
    for changes in changed.rounds(source.namespace, goal):
        _copy_again(context, target, copy, changes)
    existing = context.txn.collection(goal)
    if existing is not None and (not drops_target or existing.is_view):
        raise CommandError(48, "target namespace exists")
    catalog_changes.rename(context.txn, copy.collection, goal, existing)
    catalog_changes.drop(context.txn, target.collection)


def _copy_all(context: CommandContext, target: Target, copy: Target, left: dict[bytes, CommandError]) -> None:
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
