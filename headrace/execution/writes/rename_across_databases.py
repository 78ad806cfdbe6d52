"""Renaming a collection into another database: copy it in turns while clients write, then rename it in one turn.

    copy        copy all documents piece by piece, in natural order, into a temporary collection, with oplog entries
    catch up    copy the documents again that changed meanwhile, by the oplog, until nothing is left in one turn
    rename      in the transaction of that turn, give the copy the name and drop the source

So the copy has every write to the source that was acknowledged before the rename, and no client waits. A temporary
collection left by a crash is dropped, as for `$out`. Without an oplog, the whole copy is one turn.
"""

from __future__ import annotations

import uuid as uuids
from typing import Final

from headrace.dispatch.context import CommandContext
from headrace.dispatch.lock_waits import wait_until_unused
from headrace.errors import CommandError
from headrace.execution.storage_stats import count_of
from headrace.execution.writes.changed_documents import ChangedDocuments, insert_copy, shape_of
from headrace.execution.writes.matches import Target, measure
from headrace.execution.writes.output import temporary_collection
from headrace.store import catalog_changes
from headrace.store.catalog import Collection
from headrace.store.view import LEFT_OUT

_ROUND_COUNT_MAX: Final = 1000  # then the last changes are copied without a pause


def move(context: CommandContext, source: Collection, goal: str, *, drops_target: bool) -> None:
    """Rename `source` to `goal`, in another database. Raise 48 if `goal` exists and must not be dropped, 175 if the
    source's options or indexes change, or it is renamed or dropped meanwhile."""
    if not context.store.oplog_enabled:
        catalog_changes.move(context.txn, source, goal, context.txn.collection(goal))
        return
    temporary = f"{goal.partition('.')[0]}.tmp{uuids.uuid4().hex[:5]}.renameCollection"
    with temporary_collection(context, temporary):
        _move(context, source, temporary, goal, drops_target=drops_target)


def _move(context: CommandContext, source: Collection, temporary: str, goal: str, *, drops_target: bool) -> None:
    shape = shape_of(source)
    count_of(context, source)
    target = Target(context, source)
    copy = Target(context, catalog_changes.create(context.txn, temporary, dict(source.options)))
    indexes = [index.spec for index in source.indexes if not index.is_of_id]
    if indexes:
        catalog_changes.create_indexes(context.txn, copy.collection, indexes)
    measure(context, copy)
    changed = _Rounds(context, target)
    _copy(context, target, copy)
    for count in range(_ROUND_COUNT_MAX + 1):
        wait_until_unused(context, target.collection.namespace, goal)
        pause_count = context.pause_count
        changed.copy_again(copy, pauses=count < _ROUND_COUNT_MAX)
        if pause_count == context.pause_count and not changed.has_left:
            break
    if shape_of(target.collection) != shape:
        raise CommandError(175, f"collection '{target.collection.namespace}' was changed while it was renamed")
    existing = context.txn.collection(goal)
    if existing is not None and (not drops_target or existing.is_view):
        raise CommandError(48, "target namespace exists")
    catalog_changes.rename(context.txn, copy.collection, goal, existing)
    catalog_changes.drop(context.txn, target.collection)


def _copy(context: CommandContext, target: Target, copy: Target) -> None:
    after: bytes | None = None
    while piece := context.view.scan_chunk(target.collection, after=after):
        for after, document in piece:  # noqa: B007  (the scan continues there)
            if document is not LEFT_OUT:
                insert_copy(context, copy, document)


class _Rounds:
    """Copies the changed documents again, in rounds."""

    def __init__(self, context: CommandContext, target: Target) -> None:
        self._context = context
        self._target = target
        self._changed = ChangedDocuments(context, target)
        self._left: list[bytes] = []  # keys that could not be copied in the last round

    @property
    def has_left(self) -> bool:
        """Whether the last round could not copy all documents."""
        return bool(self._left)

    def copy_again(self, copy: Target, *, pauses: bool) -> None:
        """Copy the changed documents that exist, and remove the others from the copy. Later changes are for the next
        call."""
        context, target = self._context, self._target
        keys = list(dict.fromkeys([*self._left, *self._changed.keys()]))
        self._left = []
        for key in keys:  # remove all first: documents may have exchanged values of unique indexes
            if pauses:
                context.tick()
            before = context.txn.by_id(copy.collection, key)
            if before is not None:
                context.txn.delete(copy.collection, *before)
        for key in keys:
            if pauses:
                context.tick()
            now = context.txn.by_id(target.collection, key)
            if now is not None and not insert_copy(context, copy, now[1]):
                self._left.append(key)
