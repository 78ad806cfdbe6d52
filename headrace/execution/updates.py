"""An update applied to the documents that match: by update, findAndModify and bulkWrite."""

from __future__ import annotations

from typing import Any, Final

from bson import Timestamp

from headrace import limits
from headrace.dispatch.generic_arguments import MULTI, UPSERT
from headrace.errors import CommandError
from headrace.execution.plan import Finder, collation_of
from headrace.execution.validation import checker
from headrace.query.sort import SortKey
from headrace.query.update import Diff, Update, UpdateContext, parse_update, upsert_document
from headrace.store.catalog import Collection
from headrace.store.write_transaction import RetryableWrite, WriteTransaction
from headrace.values.bson import decode, encode
from headrace.values.position import to_timestamp


def parsed(statement: dict[str, Any], collection: Collection | None, let: Any) -> Update:
    """The update of a statement, checked; raises what is wrong with it before anything is looked for."""
    return parse_update(
        statement["u"],
        array_filters=statement.get("arrayFilters"),
        variables={**(let or {}), **(statement.get("c") or {})} or None,
        collation=collation_of(collection, statement.get("collation")),
        multi=MULTI.of(statement),
        upsert=UPSERT.of(statement),
    )


def matches(finder: Finder, txn: WriteTransaction, *, multi: bool) -> list[tuple[bytes, bytes, dict[str, Any]]]:
    """The matches to be changed, all read before the first is changed."""
    if finder.is_by_id:
        match = finder.by_id(txn)
        return [] if match is None else [(match[0], match[1], decode(match[1]))]
    walk = finder.find(txn)
    if multi:
        return list(walk)
    first = next(walk, None)
    walk.close()  # type: ignore[attr-defined]
    return [] if first is None else [first]


def first_by(finder: Finder, txn: WriteTransaction, key: SortKey) -> tuple[bytes, bytes, dict[str, Any]] | None:
    """The match that is first by a sort."""
    return min(matches(finder, txn, multi=True), key=lambda item: key.key(item[2]), default=None)


_NO_TIME: Final = Timestamp(0, 0)


class Applier:
    """An update being applied to matches of one statement."""

    __slots__ = ("_check", "_collection", "_finder", "_retryable", "_shared_context", "_takes_time", "_txn", "_update")

    def __init__(
        self, txn: WriteTransaction, collection: Collection, statement: dict[str, Any], update: Update,
        finder: Finder, body: dict[str, Any], retryable: RetryableWrite | None,
    ) -> None:  # fmt: skip
        self._txn = txn
        spec = statement["u"]
        self._takes_time = type(spec) is dict and ("$currentDate" in spec or _NO_TIME in spec.values())
        self._collection = collection
        self._update = update
        self._finder = finder
        self._retryable = retryable
        self._check = checker(collection, body)
        varies = self._takes_time or update.needs_position or update.kind == "pipeline"
        self._shared_context = None if varies else UpdateContext(txn.wall_ms, _NO_TIME)

    def _time(self) -> Timestamp:
        """The current timestamp for an update: a new position, as in MongoDB, if the update may write one."""
        if not self._takes_time and self._update.kind != "pipeline":
            return _NO_TIME
        position = self._txn.reserve(1) if self._takes_time else self._txn.clock_position
        return to_timestamp(position)

    def change(self, record: bytes, raw: bytes, document: dict[str, Any]) -> dict[str, Any] | None:
        """Change one document; returns it as it is now, or None if nothing changed."""
        applied = self._update.apply(document, self._shared_context or self._context_of(document))
        if applied.change is None:
            return None
        new = encode(applied.document)
        if len(new) > limits.DOCUMENT_BYTES_MAX:
            raise CommandError(17419, f"Resulting document after update is larger than {limits.DOCUMENT_BYTES_MAX}")
        self._check(new)
        logged = encode(applied.change.entry) if type(applied.change) is Diff else new
        self._txn.replace(self._collection, record, raw, new, logged, self._retryable)
        return applied.document

    def _context_of(self, document: dict[str, Any]) -> UpdateContext:
        positional = self._finder.positional(document) if self._update.needs_position else None
        return UpdateContext(self._txn.wall_ms, self._time(), positional)

    def insert(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Insert what an upsert makes of filter and update; returns it as stored."""
        made = upsert_document(self._update, spec, UpdateContext(self._txn.wall_ms, self._time(), inserting=True))
        raw = encode(made)
        self._check(raw)
        return decode(self._txn.insert(self._collection, raw, self._retryable))
