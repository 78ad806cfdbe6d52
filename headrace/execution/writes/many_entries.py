"""Documents of very many index keys: these come and go in pieces before the document is changed."""

from __future__ import annotations

from collections.abc import Callable

from headrace import limits
from headrace.dispatch.context import CommandContext
from headrace.execution.writes.matches import Target
from headrace.store.catalog import Collection
from headrace.store.commit.entries_in_pieces import EntriesInPieces
from headrace.store.indexes.prepared_change import PreparedChange
from headrace.turns import current_turn


def are_many(
    context: CommandContext, collection: Collection, made: PreparedChange | None, old: bytes | None, new: bytes | None
) -> bool:
    """Whether the entries of a change from `old` to `new` go in pieces, as `made` knows them."""
    return (
        made is not None and made.count > limits.ENTRY_COUNT and made.fits(collection, old, new)
        and current_turn() is not None and context.transaction is None and context.store.oplog_enabled
        and collection.capped is None
    )  # fmt: skip


def claimed(
    context: CommandContext, collection: Collection, record: bytes, made: PreparedChange
) -> EntriesInPieces | None:
    """What changes the entries of a document that is as `made` knows it, and that nobody else can write from here on;
    None where somebody had locked some of it: this has waited, and the document may be another."""
    entries = EntriesInPieces(context.txn, collection, record, made)
    try:
        holder = entries.claim()
    except BaseException:
        entries.fail()
        raise
    if holder is None:
        return entries
    context.wait_for(holder)
    return None


def change_behind_entries(
    context: CommandContext, target: Target, record: bytes, made: PreparedChange,
    change: Callable[[EntriesInPieces], None],
) -> bool:  # fmt: skip
    """Change a document behind its entries; False where it, or its collection, may have been changed meanwhile."""
    entries = claimed(context, target.collection, record, made)
    if entries is None:
        return False
    entries.put(lambda: context.txn, target.collection)
    try:
        if entries.fits(target.collection, made.old, made.new):
            change(entries)
            return True
    except BaseException:
        entries.fail()
        raise
    entries.fail()
    return False
