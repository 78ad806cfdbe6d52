"""The documents of a collection that clients change while a command copies it, found in the oplog.

A copy that pauses copies these documents again, until a round neither pauses nor leaves any. Without an oplog, a copy
does not pause.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from headrace import limits
from headrace.changes.entry import DecodedEntry
from headrace.dispatch.context import CommandContext
from headrace.dispatch.lock_waits import wait_until_unused
from headrace.errors import CommandError
from headrace.execution.writes.matches import Target
from headrace.store.catalog import Collection
from headrace.store.identity import identify
from headrace.turns import run_to_the_end


def shape_of(collection: Collection) -> Any:
    """Return the options and indexes of a collection, to compare them after a pause."""
    return collection.options, [index.spec for index in collection.indexes]


def insert_copy(context: CommandContext, copy: Target, document: bytes) -> CommandError | None:
    """Insert a copy. Return the error of a duplicate key: documents have changed meanwhile, or share a key of an index
    with `prepareUnique`."""
    try:
        context.txn.insert(copy.collection, document)
    except CommandError as error:
        if error.code != 11000:
            raise
        return error
    return None


_ROUND_COUNT_MAX: Final = 1000  # then the last changes are copied without a pause
_PRUNED: Final = "the oplog no longer has what was changed while the collection was copied"


@dataclass(slots=True)
class CopyRound:
    """Documents to copy again: their `_id` keys, each with whether the document was inserted."""

    context: CommandContext
    keys: dict[bytes, bool]
    pauses: bool
    left: dict[bytes, CommandError] = field(default_factory=dict)
    """Keys of documents that could not be copied, and why: for the next round."""

    def __iter__(self) -> Iterator[bytes]:
        for key in self.keys:
            if self.pauses:
                self.context.tick()
            yield key


class ChangedDocuments:
    """The documents of a collection that clients have changed since this object was made."""

    def __init__(self, context: CommandContext, target: Target) -> None:
        if not context.store.oplog_enabled:
            run_to_the_end()
        self._context = context
        self._target = target
        self._through = context.txn.clock_position
        self._shape = shape_of(target.collection)
        self.left: dict[bytes, CommandError] = {}
        """Keys of documents that could not be copied yet, and why."""

    def rounds(self, *used: str) -> Iterator[CopyRound]:
        """Yield the documents that have changed or are `left`, until a round does not pause.

        No client's transaction uses the collections `used` in the last round. Raises 175 if the options or indexes of
        the copied collection have changed, and 11000 if the last round leaves documents: they share a key."""
        context = self._context
        for count in range(_ROUND_COUNT_MAX + 1):
            wait_until_unused(context, *used)
            pause_count = context.pause_count
            keys = {**dict.fromkeys(self.left, False), **self.keys()}
            changes = CopyRound(context, keys, pauses=count < _ROUND_COUNT_MAX)
            yield changes
            self.left = changes.left
            if pause_count == context.pause_count:
                break
        collection = self._target.collection
        if shape_of(collection) != self._shape:
            raise CommandError(175, f"collection '{collection.namespace}' was changed while it was copied")
        for error in self.left.values():
            raise error

    def keys(self) -> dict[bytes, bool]:
        """Return the `_id` keys of the documents that have changed since the last call, and whether each was inserted.

        Inserted documents are in the order of their last insert."""
        context = self._context
        keys: dict[bytes, bool] = {}
        while True:
            context.tick()
            if context.store.pruned_through > self._through:
                raise CommandError(175, _PRUNED)
            piece = self._entries()
            for _, entry in piece:
                self._note(entry, keys)
            if not piece:
                return keys
            self._through = piece[-1][0]

    def _note(self, raw: bytes, keys: dict[bytes, bool]) -> None:
        """Note the documents that an entry has changed."""
        try:
            operations = DecodedEntry(raw).operations(self)
        except CommandError as error:
            if error.code != 286:
                raise
            raise CommandError(175, _PRUNED) from None  # earlier entries of a transaction
        for operation in operations:
            head = operation.head
            if head is None or head.namespace != self._target.collection.namespace:
                continue
            key = identify(operation.o2)[0]
            if head.kind == "insert":
                keys.pop(key, None)
                keys[key] = True
            else:
                keys.setdefault(key, False)

    def entry(self, position: int) -> bytes | None:
        """Return an entry, also one of the current transaction. `EntryLookup` for the earlier entries of a client's
        transaction, whose commit may share the current transaction."""
        txn = self._context.txn
        key, keys = position.to_bytes(8, "big"), txn.staged.keys
        at = bisect_left(keys, key)
        return txn.staged.entries[at] if at < len(keys) and keys[at] == key else txn.entry(position)

    def _entries(self) -> list[tuple[int, bytes]]:
        """Return the next oplog entries of the collection: stored ones, then those of the current transaction."""
        txn, first = self._context.txn, self._through + 1
        stored: list[tuple[int, bytes]] = []
        for item in txn.entries_of([self._target.collection.topic], first):
            stored.append(item)
            if len(stored) == limits.VIEW_CHUNK_COUNT:
                return stored
        if stored:
            return stored
        staged = zip((int.from_bytes(key, "big") for key in txn.staged.keys), txn.staged.entries)
        return [(position, entry) for position, entry in staged if position >= first]
