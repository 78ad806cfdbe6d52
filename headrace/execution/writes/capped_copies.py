"""Capped copies of a collection, for `convertToCapped` and `cloneCollectionAsCapped`, made in turns.

    copy        copy the newest documents that fit, the oldest of them first
    catch up    repeat on the copy what clients did to the collection meanwhile, by the oplog, until nothing is left in
                one turn
    rename      for `convertToCapped`: in the transaction of that turn, give the copy the collection's name

So the copy has the documents that the collection has at the end of the command. Events are as MongoDB's: a create and
an insert for each document, of a temporary name for `convertToCapped`, which ends with a rename. Clients may use the
collection meanwhile; on MongoDB they wait. Without an oplog, the whole copy is one turn.
"""

from __future__ import annotations

import uuid as uuids

from headrace.dispatch.context import CommandContext
from headrace.execution.writes.changed_documents import ChangedDocuments, insert_copy
from headrace.execution.writes.matches import Target, measure
from headrace.execution.writes.output import temporary_collection
from headrace.store import capped, catalog_changes
from headrace.store.catalog import Collection
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
