"""Check that a collection's documents, indexes and counts agree, for `validate`, and repair them, also for `reIndex`.

First each document must be readable and have exactly its rows in every index. Then each row of every index must belong
to a document. A document and its rows are read through one view. Between two documents the command may pause, so that
writes go on. Without repairs, the whole check reads one state.

Source: MongoDB's manual, validate; shapes of `missingIndexEntries` and `extraIndexEntries` as it shows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from bson import Int64
from bson.errors import BSONError

from headrace import limits
from headrace.dispatch.context import CommandContext
from headrace.errors import CommandError
from headrace.execution.let import CommandVariables
from headrace.query.match import parse_filter
from headrace.query.match.filter_failures import complies
from headrace.store.catalog import Collection
from headrace.store.checksums.transaction import DamagedValue
from headrace.store.indexes.index_entries import key_maker, note_traits
from headrace.store.indexes.index_rows import IndexRows, RecentRows, Row, rows_of
from headrace.store.view import View
from headrace.values.bson import decode


@dataclass(slots=True)
class IndexReport:
    """The findings about one index."""

    keys: int = 0
    missing: int = 0
    extra: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        """Whether the index has exactly the rows of the documents."""
        return not (self.missing or self.extra or self.errors)


@dataclass(slots=True)
class CollectionReport:
    """The findings about a collection. Lists have a maximum length; numbers count all findings."""

    count: int = 0
    invalid: int = 0
    non_compliant: int = 0
    corrupt: list[Int64] = field(default_factory=list)
    missing: list[dict[str, Any]] = field(default_factory=list)
    extra: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    indexes: dict[str, IndexReport] = field(default_factory=dict)

    def error(self, text: str) -> None:
        """Add an error to the report."""
        if len(self.errors) < limits.VALIDATE_LISTED_COUNT_MAX:
            self.errors.append(text)


def inspect(context: CommandContext, collection: Collection, *, repairs: bool = False) -> CollectionReport:
    """Check the documents, indexes and count of a collection. Raise 175 if it is dropped or renamed meanwhile.

    `repairs`: in a write transaction, remove unreadable documents, add missing rows and remove extra ones. The report
    lists what was wrong.
    """
    return _Inspection(context, collection, repairs=repairs).run()


def inspect_count(context: CommandContext, collection: Collection) -> CollectionReport:
    """Check only the number of documents, by counting their records."""
    return _Inspection(context, collection, repairs=False).run_count()


class _Inspection:
    def __init__(self, context: CommandContext, collection: Collection, *, repairs: bool) -> None:
        self._context = context
        self._namespace = collection.namespace
        self._uuid = collection.uuid
        self._repairs = repairs
        self._report = CollectionReport()
        self._recent = RecentRows()
        self._last: tuple[bytes, bytes | None] = b"", None
        validator = collection.options.get("validator")
        self._complies = parse_filter(validator, variables=CommandVariables(context)) if validator else None

    def run(self) -> CollectionReport:
        report, store = self._report, self._context.store
        began = store.last_position, self._context.pause_count
        for index in self._view()[1].indexes:
            report.indexes[index.name] = IndexReport()
        for record in self._records():
            self._document(record)
        for name in list(report.indexes):
            self._index(name)
        unchanged = began[0] == store.last_position if store.oplog_enabled else began[1] == self._context.pause_count
        if unchanged or not self._repairs:
            self._compare_count()
        return report

    def run_count(self) -> CollectionReport:
        self._report.count = sum(1 for _ in self._records())
        self._compare_count()
        return self._report

    def _view(self) -> tuple[View, Collection]:
        """Return the current view and the collection in it. The command may pause here. Raise 175 if it is gone."""
        view = self._context.view
        collection = view.collection(self._namespace)
        if collection is None or collection.uuid != self._uuid:
            raise CommandError(175, f"collection '{self._namespace}' was dropped or renamed")
        return view, collection

    def _records(self) -> Iterator[bytes]:
        after: bytes | None = None
        while True:
            view, collection = self._view()
            records = list(islice(view.records(collection, after=after), limits.COUNT_COUNT))
            if not records:
                return
            yield from records
            after = records[-1]

    # Documents.

    def _document(self, record: bytes) -> None:
        view, collection = self._view()
        report = self._report
        try:
            raw = view.by_record(collection, record)
        except DamagedValue as error:
            report.count += 1
            self._corrupt(collection, record, error)
            return
        if raw is None:  # deleted meanwhile
            return
        report.count += 1
        for index in collection.indexes:
            rows = rows_of(collection, index)
            if rows is not None and index.name in report.indexes:
                self._rows_of_document(view, rows, record, raw)
        try:
            document = decode(raw)
        except (BSONError, UnicodeDecodeError) as error:
            report.invalid += 1
            report.error(f"record {_number(record)} is no valid BSON: {error}")
            return
        if self._complies is not None and not complies(self._complies, document):
            report.non_compliant += 1

    def _corrupt(self, collection: Collection, record: bytes, error: DamagedValue) -> None:
        report = self._report
        report.invalid += 1
        report.error(error.message)
        if len(report.corrupt) < limits.VALIDATE_LISTED_COUNT_MAX:
            report.corrupt.append(_number(record))
        if self._repairs:
            txn = self._context.txn
            txn.kv.delete(collection.number_key + record, db=txn.tables["documents"])
            txn.add_count(collection, -1, removed=record)
            report.count -= 1

    def _rows_of_document(self, view: View, rows: IndexRows, record: bytes, raw: bytes) -> None:
        """Check that an index has every row of a document, and the traits of the document."""
        index, checked = rows.index, self._report.indexes[rows.index.name]
        try:
            expected, traits = rows.expected(record, raw)
        except CommandError as error:
            checked.errors.append(f"record {_number(record)} has no key: {error.message}")
            return
        if not traits <= index.traits:
            names = ", ".join(sorted(traits - index.traits))
            self._report.warnings.append(f"Index {index.name} lacks traits of record {_number(record)}: {names}")
            if self._repairs:
                note_traits(self._context.txn, rows.collection, index, traits | index.traits)
        table = view.tables[rows.table]
        for key, value in expected.items():
            try:
                is_there = view.kv.get(key, db=table) == value
            except DamagedValue:
                is_there = False
            if not is_there:
                self._missing(rows, key, value, raw)

    def _missing(self, rows: IndexRows, key: bytes, value: bytes, raw: bytes) -> None:
        checked = self._report.indexes[rows.index.name]
        checked.missing += 1
        if len(self._report.missing) < limits.VALIDATE_LISTED_COUNT_MAX:
            document = decode(raw)
            record = value or key[-8:]
            self._report.missing.append({
                "indexName": rows.index.name, "recordId": _number(record), "idKey": {"_id": document.get("_id")},
                "indexKey": _values(rows, key, raw),
            })  # fmt: skip
        if self._repairs and not self._is_another_s(rows, key):
            txn = self._context.txn
            txn.kv.put(key, value, db=txn.tables[rows.table])

    def _is_another_s(self, rows: IndexRows, key: bytes) -> bool:
        """Whether another document has the same unique key, so that no repair is possible."""
        txn = self._context.txn
        try:
            record = txn.kv.get(key, db=txn.tables[rows.table])
            raw = None if record is None or len(record) != 8 else txn.by_record(rows.collection, record)
            if record is None or raw is None or key not in rows.expected(record, raw)[0]:
                return False
        except CommandError:
            return False
        self._report.indexes[rows.index.name].errors.append(f"record {_number(record)} has the key of another")
        return True

    # Rows.

    def _index(self, name: str) -> None:
        """Check that every row of an index belongs to a document. Stop if the index is dropped meanwhile."""
        after: bytes | None = None
        while True:
            view, collection = self._view()
            index = next((item for item in collection.indexes if item.name == name), None)
            rows = None if index is None else rows_of(collection, index)
            if rows is None:
                return
            piece = rows.piece(view, after)
            self._last = b"", None
            for row in piece:
                self._row(view, rows, row)
            if not piece:
                return
            after = piece[-1][0]

    def _row(self, view: View, rows: IndexRows, row: Row) -> None:
        checked = self._report.indexes[rows.index.name]
        checked.keys += 1
        record = rows.record(row)
        try:
            raw = None if record is None else self._read(view, rows, record)
            if record is None or raw is None:
                expected: dict[bytes, bytes] = {}
            elif rows.table == "ids":
                expected = rows.expected(record, raw)[0]
            else:
                expected = self._recent.expected(rows.index, record, raw)
        except CommandError:  # already reported with the document
            return
        if row[0] in expected and expected[row[0]] == row[1]:
            return
        checked.extra += 1
        if len(self._report.extra) < limits.VALIDATE_LISTED_COUNT_MAX:
            shown: dict[str, Any] = {"indexName": rows.index.name, "keyString": row[0][4:].hex()}
            self._report.extra.append(shown if record is None else {**shown, "recordId": _number(record)})
        if self._repairs:
            txn = self._context.txn
            txn.kv.delete(row[0], db=txn.tables[rows.table])
            checked.keys -= 1

    def _read(self, view: View, rows: IndexRows, record: bytes) -> bytes | None:
        """Return the document of a record. Cache the last one: consecutive rows often belong to the same document."""
        if record != self._last[0]:
            self._last = record, view.by_record(rows.collection, record)
        return self._last[1]

    # Counts.

    def _compare_count(self) -> None:
        """Compare the count in memory with the counted documents, and correct it. Called only if nothing has changed
        meanwhile. A reader process has no such count: see `inspect_count`."""
        view, collection = self._view()
        known = view.known_count(collection)
        if known is None or not view.is_counted(collection) or (stored := view.count(collection)) == self._report.count:
            return
        self._report.warnings.append(
            f"The collection was counted as {stored} documents and has {self._report.count}; the count is right now"
        )
        view.keep_count(collection, known._replace(documents=self._report.count))


def _number(record: bytes) -> Int64:
    return Int64(int.from_bytes(record, "big"))


def _values(rows: IndexRows, key: bytes, raw: bytes) -> dict[str, Any]:
    """Return the values of a row that a document should have, by field."""
    if rows.table == "ids":
        return {"_id": decode(raw).get("_id")}
    without_record = key if rows.index.unique else key[:-8]
    return dict(zip(rows.index.spec["key"], key_maker(rows.index).rows(raw)[without_record]))
