"""Applying an update to the matching documents, for update, findAndModify and bulkWrite."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from operator import methodcaller
from typing import Any, Final, NamedTuple

from bson import Timestamp

from headrace import limits
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import MULTI
from headrace.dispatch.lock_waits import wait_until_unlocked
from headrace.errors import CommandError
from headrace.execution.plan import Finder, collation_of
from headrace.execution.writes.matches import (
    MatchedDocument,
    Matches,
    Target,
    are_unchanged,
    current,
    insert,
    is_unchanged,
    measure,
    raw_matches,
)
from headrace.execution.writes.validation import Validator
from headrace.query.update.raw_updates import SlicedUpdate, sliced_update
from headrace.query.update.update import Diff, Update, UpdateContext, upsert_document
from headrace.query.update.update_parser import parse_update
from headrace.store.catalog import Collection
from headrace.store.write_transaction import RetryableWrite
from headrace.time_limit import limited, limited_call
from headrace.values.bson import decode, encode
from headrace.values.position import to_timestamp


def parsed(statement: dict[str, Any], collection: Collection | None, let: Any) -> Update:
    """Return the checked update of a statement. Raise the errors of an invalid update, before any read."""
    if statement.get("c"):
        if type(statement["u"]) is not list:
            raise CommandError(51198, "Constant values may only be specified for pipeline updates")
        let = {} if let is None else copy(let)
        let.update(statement["c"])
    return parse_update(
        statement["u"],
        array_filters=statement.get("arrayFilters"),
        variables=let,
        collation=collation_of(collection, statement.get("collation")),
        multi=MULTI.of(statement),
    )


_NO_TIME: Final = Timestamp(0, 0)


def _has_no_time(document: dict[str, Any]) -> bool:
    """Whether a field is an empty timestamp. The types are checked first, because comparing values is slow."""
    return Timestamp in map(type, document.values()) and _NO_TIME in document.values()


HARMLESS: Final = frozenset({"changeStreamPreAndPostImages"})
"""The options of a collection that do not affect how documents are found and changed."""


class Changed(NamedTuple):
    """A matched document before and after the update."""

    before: dict[str, Any]
    after: dict[str, Any] | None
    """The document after the update; None if the update changes nothing."""


class Applier:
    """Applies the update of one statement to its matches."""

    __slots__ = (
        "_context", "_finder", "_retryable", "_shared_context", "_takes_time", "_target", "_update",
        "_validator",
    )  # fmt: skip

    def __init__(
        self, context: CommandContext, target: Target, statement: dict[str, Any], update: Update, finder: Finder,
        body: dict[str, Any], retryable: RetryableWrite | None,
    ) -> None:  # fmt: skip
        self._context = context
        spec = statement["u"]
        keeps = context.keeps_empty_timestamps
        self._takes_time = type(spec) is dict and ("$currentDate" in spec or (not keeps and _has_no_time(spec)))
        self._target = target
        self._update = update
        self._finder = finder
        self._retryable = retryable
        self._validator = Validator(body, context)
        varies = self._takes_time or update.needs_position or update.kind == "pipeline"
        self._shared_context = None if varies else UpdateContext(context.txn.wall_ms, _NO_TIME)

    def _time(self) -> Timestamp:
        """Return the current timestamp for an update: a new position, as in MongoDB, if the update may write it."""
        if not self._takes_time and self._update.kind != "pipeline":
            return _NO_TIME
        txn = self._context.txn
        position = txn.reserve(1) if self._takes_time else txn.clock_position
        return to_timestamp(position)

    def change(self, match: MatchedDocument) -> Changed | None:
        """Change one document. Return None if it was changed or deleted meanwhile and no longer matches."""
        context, target = self._context, self._target
        while True:
            is_long = len(match.raw) > limits.VIEW_CHUNK_BYTES
            if is_long:  # decoding it may have taken long, and the update may, too
                context.tick()
            if match.pause_count != context.pause_count:
                latest = current(context, target, self._finder, match)
                if latest is None:
                    return None
                match = latest
            times = self._shared_context or self._context_of(match.document)
            applied = limited(self._update.apply)(match.document, times)
            if applied.change is None:
                return Changed(match.document, None)
            if is_long:
                context.tick()
            new = encode(applied.document)
            if len(new) > limits.DOCUMENT_BYTES_MAX:
                raise CommandError(17419, f"Resulting document after update is larger than {limits.DOCUMENT_BYTES_MAX}")
            self._validator.check(target.collection, new, match.raw)
            logged = encode(applied.change.entry) if type(applied.change) is Diff else new
            if match.pause_count != context.pause_count and not is_unchanged(context, target, match):
                continue
            write = target.collection, match.record, match.raw, new, logged
            if context.has_locks and not wait_until_unlocked(context, methodcaller("replace", *write)):
                continue
            context.txn.replace(*write, self._retryable, self._update.fields)
            return Changed(match.document, applied.document)

    def change_all(self) -> Iterator[tuple[int, int]]:
        """Change all matches, some documents at a time. Yield the numbers of matched and changed documents.

        The filter must have no `$near`."""
        context, times = self._context, self._shared_context
        sliced = None if times is None else sliced_update(self._update, times)
        for matches, pause_count in raw_matches(context, self._finder):
            yield from self._change_some(sliced, matches, pause_count)

    def _change_some(
        self, sliced: SlicedUpdate | None, matches: Matches, pause_count: int
    ) -> Iterator[tuple[int, int]]:  # fmt: skip
        context, target, results = self._context, self._target, None
        is_plain = not context.has_locks and target.collection.options.keys() <= HARMLESS
        if sliced is not None and is_plain and are_unchanged(context, target, matches, pause_count):
            results = sliced.apply([raw for _, raw in matches])
        if sliced is None or results is None:
            yield from self._change_each(matches, pause_count)
            return
        changes = [(*match, *result) for match, result in zip(matches, results) if result is not None]
        done = context.txn.replace_many(target.collection, changes, sliced.fields) if changes else 0
        if done == len(changes):
            yield len(matches), done
            return
        refused = next(number for number, match in enumerate(matches) if match[0] == changes[done][0])
        yield refused, done
        yield from self._change_each(matches[refused:], pause_count)

    def _change_each(self, matches: Matches, pause_count: int) -> Iterator[tuple[int, int]]:
        for record, raw in self._context.paced(matches):
            changed = self.change(MatchedDocument(record, raw, decode(raw), pause_count))
            if changed is not None:
                yield 1, int(changed.after is not None)

    def _context_of(self, document: dict[str, Any]) -> UpdateContext:
        positional = self._finder.positional(document) if self._update.needs_position else None
        return UpdateContext(self._context.txn.wall_ms, self._time(), positional)

    def insert(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Insert the document that an upsert makes from filter and update. Return it as stored."""
        context, target = self._context, self._target
        times = UpdateContext(context.txn.wall_ms, self._time(), inserting=True)
        raw = encode(limited_call(upsert_document)(self._update, spec, times))
        self._validator.check(target.collection, raw)
        measure(context, target)
        return decode(insert(context, target, raw, self._retryable))
