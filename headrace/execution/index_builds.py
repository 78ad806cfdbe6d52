"""Indexes added to a collection that has documents, in turns.

An index is filled piece by piece. From the start of its build every change of a document is in it, whoever makes
it, so that a piece looked at once needs no second look. Whatever replaces the collection in memory meanwhile (a group
of writes that failed, another change of its indexes) ends that: the build then begins anew. An index that is not added
in the end, and one that a crash has cut short, is garbage.

Source: MongoDB's hybrid index builds.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from headrace import limits
from headrace.dispatch.context import CommandContext
from headrace.dispatch.lock_waits import wait_until_unused
from headrace.execution.matches import Target
from headrace.execution.storage_stats import count_of
from headrace.store import catalog_changes
from headrace.store.catalog import Collection, Index, can_have_entries
from headrace.store.indexes import index_entries
from headrace.turns import current_turn, uninterrupted


def build_indexes(context: CommandContext, collection: Collection, specs: list[dict[str, Any]]) -> None:
    """Add indexes. Raises 11000 for a unique one over duplicates, 175 where the collection goes meanwhile."""
    if context.transaction is not None or current_turn() is None:
        catalog_changes.create_indexes(context.txn, collection, specs)
        return
    namespace = collection.namespace
    target = Target(context, collection)
    count_of(context, collection)
    while True:
        names = {index.name for index in target.collection.indexes}
        specs = [spec for spec in specs if spec["name"] not in names]  # another client may have added some
        if not specs:
            return
        building = [
            catalog_changes.begin_index(context.txn, target.collection, spec)
            for spec in specs
            if can_have_entries(spec)
        ]
        try:
            if all(_fill(context, target, index, building) for index in building):
                wait_until_unused(context, namespace)
                if _goes_on(target, building):
                    _add(context, target, specs, building)
                    return
        finally:
            for index in building:
                catalog_changes.end_index(context.store, context.store.catalog.collection(namespace), index)


def _add(context: CommandContext, target: Target, specs: list[dict[str, Any]], building: list[Index]) -> None:
    """Add them all, in the order in which they were asked for."""
    filled = iter(building)
    catalog, txn = context.txn.catalog, context.txn
    made = [next(filled) if can_have_entries(spec) else Index(catalog.new_number(txn.kv), spec) for spec in specs]
    catalog_changes.add_built_indexes(txn, target.collection, made)


def _goes_on(target: Target, building: list[Index]) -> bool:
    """Whether all changes since the start of the build are in the indexes."""
    return all(index in target.collection.maintained for index in building)


def _fill(context: CommandContext, target: Target, index: Index, building: list[Index]) -> bool:
    """Put the keys of all documents into the index; False if the build must begin anew."""
    after: bytes | None = None
    while True:
        view = context.view
        if not _goes_on(target, building):
            return False
        piece = list(islice(view.scan(target.collection, after=after), limits.VIEW_CHUNK_COUNT))
        with uninterrupted():
            index_entries.add(context.txn, target.collection, index, piece)
        if not piece:
            return True
        after = piece[-1][0]
