"""insert: documents into a collection, which is created if it does not exist.

The hot path: documents go from the socket to the store as bytes. They are decoded only as a check, because a malformed
document in the store would break every read of it, and every stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from operator import methodcaller
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from bson.errors import BSONError

from headrace import limits
from headrace.clock import monotonic
from headrace.commands.requirements import writes
from headrace.commands.writing.write_again import again, plain_collection
from headrace.dispatch.arguments import Fields, array, raw_documents
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import BYPASS, ENCRYPTION, KEEPS_EMPTY_TIMESTAMPS, ORDERED, TIME_SERIES
from headrace.dispatch.lock_waits import wait_until_unlocked
from headrace.dispatch.namespaces import COLLECTION_UUID, check_writable, refused, target
from headrace.dispatch.profiling.usage import INSERT
from headrace.dispatch.reply import write_errors
from headrace.dispatch.request import Request
from headrace.dispatch.retryable_writes import progress_of, retryable_of, statement_done
from headrace.errors import CommandError
from headrace.execution.time_series import Buckets, buckets_of
from headrace.execution.writes.matches import Target, created, insert, measure
from headrace.execution.writes.measurements import check_no_transaction, insert_measurements, refused_sources
from headrace.execution.writes.validation import Validator
from headrace.store import capped
from headrace.store.catalog import Collection
from headrace.store.identity import with_id_first
from headrace.store.indexes.index_entries import TooManyEntries
from headrace.store.write_transaction import RetryableWrite, WriteTransaction
from headrace.timeseries.bucket import Measurement, taken_apart
from headrace.values.bson import check_all
from headrace.values.rows import part, total_bytes

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

_INT32 = Struct("<i").pack
_N: Final = b"\x10n\x00"

FIELDS: Final = Fields(
    BYPASS, KEEPS_EMPTY_TIMESTAMPS, ORDERED, array("documents"), COLLECTION_UUID, *ENCRYPTION, *TIME_SERIES
)


def run(context: CommandContext, request: Request) -> bytes | dict[str, Any]:
    """insert: answer `n`, the number of inserted documents, and `writeErrors` by index of the document."""
    namespace = target(request)
    documents = raw_documents(request, "documents")
    check_documents(documents, context.tick)
    check_writable(namespace)
    context.keeps_empty_timestamps = KEEPS_EMPTY_TIMESTAMPS.of(request.body)
    collection = context.txn.catalog.collections.get(namespace)
    if collection is not None and collection.is_view and not collection.is_time_series:
        errors = refused(collection, len(documents), ordered=ORDERED.of(request.body))
        return {"n": 0, "writeErrors": errors}
    retryable = retryable_of(context, request) if "txnNumber" in request.body else None
    if len(documents) == 1 and (collection is None or not (collection.checks_documents or collection.is_view)):
        return _one(context, collection, namespace, documents[0], retryable)
    ordered = ORDERED.of(request.body)
    progress = progress_of(context, n=0, writeErrors=[])

    def done(index: int, count: int) -> None:
        progress["n"] += count
        statement_done(progress, index, retryable)

    def failed(index: int, error: CommandError) -> None:
        progress["writeErrors"] += write_errors([(index, error)])
        statement_done(progress, index, retryable)

    inserts = Inserts(context, request, namespace, retryable, ordered=ordered, done=done, failed=failed)
    inserts.run(documents, progress["next"])
    if not progress["writeErrors"]:
        return _N + _INT32(progress["n"])
    return {"n": progress["n"], "writeErrors": progress["writeErrors"]}


_ONE_INSERTED: Final = _N + _INT32(1)


def _one(
    context: CommandContext, collection: Collection | None, namespace: str, document: bytes,
    retryable: RetryableWrite | None,
) -> bytes | dict[str, Any]:  # fmt: skip
    """Insert one document into a collection without checks: the commonest insert."""
    context.metrics["operations.insert"] += 1
    try:
        if collection is None:
            with_id_first(document)  # a document that is refused makes no collection
            collection = created(context, namespace)
        if context.engine.store.transactions.locks:  # `has_locks` checks this first; checking here saves a call
            while context.has_locks and not wait_until_unlocked(context, methodcaller("insert", collection, document)):
                collection = created(context, collection.namespace)
        context.txn.insert(collection, document, retryable, keeps_empty_timestamps=context.keeps_empty_timestamps)
    except CommandError as error:
        return {"n": 0, "writeErrors": write_errors([(0, error)])}
    context.metrics["document.inserted"] += 1
    return _ONE_INSERTED


def insert_plain(
    engine: Engine, txn: WriteTransaction, namespace: str, document: bytes, *, is_sound: bool = False
) -> bool:
    """Insert one document like the command without options, but without a reply, for `headrace.open`.

    Return False, and do nothing, if the command must run instead. `is_sound`: the document is known to decode.
    """
    began = monotonic()
    collection = plain_collection(engine, txn, namespace)
    if collection is None or len(document) > limits.INSERT_BYTES:
        return False
    try:
        check_writable(namespace)
        if not is_sound:
            check_all((document,))
        _insert_one(engine, txn, collection, document)
    except (CommandError, BSONError, UnicodeDecodeError):
        return False
    engine.metrics[COMMAND.total] += 1
    database, _, name = namespace.partition(".")
    engine.usage.note_key((INSERT, database, name), monotonic() - began)
    return True


def _insert_one(
    engine: Engine, txn: WriteTransaction, collection: Collection, document: bytes,
    retryable: RetryableWrite | None = None,
) -> bytes:  # fmt: skip
    """Insert a checked document. Return the elements of the reply: see `write_again.py`."""
    txn.insert(collection, document, retryable)
    metrics = engine.metrics
    metrics["operations.insert"] += 1
    metrics["document.inserted"] += 1
    return _ONE_INSERTED


def check_documents(documents: list[bytes], tick: Callable[[], None]) -> None:
    """Run `check_all` on one piece at a time. Put the `_id` of long documents first, because a `tick` is possible
    here."""
    if len(documents) == 1:
        check_all(documents)
        if len(documents[0]) > limits.INSERT_BYTES:
            _put_id_first(documents, 0)
        return
    for first, end in pieces(documents, 0):
        tick()
        check_all(part(documents, first, end))
        if len(documents[end - 1]) > limits.INSERT_BYTES:
            _put_id_first(documents, end - 1)


def _put_id_first(documents: list[bytes], index: int) -> None:
    with suppress(CommandError):  # reported later, with the document's index
        documents[index] = with_id_first(documents[index])


def pieces(
    documents: list[bytes], first: int, bytes_max: int = limits.INSERT_BYTES
) -> Iterator[tuple[int, int]]:  # fmt: skip
    """Yield (start, end) of the documents to insert at once, about a millisecond's worth."""
    if total_bytes(documents) < bytes_max:  # short documents: only their number is limited
        for start in range(first, len(documents), limits.INSERT_COUNT):
            yield start, min(start + limits.INSERT_COUNT, len(documents))
        return
    size = 0
    for index in range(first, len(documents)):
        size += len(documents[index])
        if size >= bytes_max or index - first == limits.INSERT_COUNT - 1:
            yield first, index + 1
            first, size = index + 1, 0
    if first < len(documents):
        yield first, len(documents)


@dataclass(slots=True)
class Inserts:
    """The documents of one command that go into one collection, inserted piece by piece."""

    context: CommandContext
    request: Request
    namespace: str
    retryable: RetryableWrite | None
    ordered: bool
    done: Callable[[int, int], None]
    """Called after each batch with the index of its last document, and its length."""
    failed: Callable[[int, CommandError], None]
    """Called with the index of a refused document, and its error."""
    validator: Validator = field(init=False)
    count_max: int = limits.INSERT_COUNT
    """The maximum of documents inserted at once; fewer if they have many index keys."""

    def __post_init__(self) -> None:
        self.validator = Validator(self.request.body, self.context)

    def run(self, documents: list[bytes], first: int, offset: int = 0) -> None:
        """Insert `documents` from index `first` on. `offset`: the index of `documents[0]` among the statements.

        If `ordered`, no document after a refused one is inserted.
        """
        collection = self.context.txn.collection(self.namespace)
        if collection is not None and collection.is_time_series:
            check_no_transaction(self.context, "insert into", self.namespace)
            self._measurements(documents, first, offset)
            return
        is_indexed = collection is not None and bool(collection.maintained)
        bytes_max = limits.INDEXED_INSERT_BYTES if is_indexed else limits.INSERT_BYTES
        for start, end in pieces(documents, first, bytes_max) if len(documents) > 1 else ((first, len(documents)),):
            self.context.tick()
            if not self._piece(part(documents, start, end), start + offset):
                return

    def _measurements(self, documents: list[bytes], first: int, offset: int) -> bool:
        """Insert into a time series, a piece at a time, because many measurements go into one bucket. Return False if a
        refused document ends the command."""
        for start, end in pieces(documents, first):
            self.context.tick()
            taken, errors = self._taken_apart(documents[start:end], start + offset)
            if self.retryable is not None:
                self.retryable.statement = max(taken, default=start + offset)
            metrics = self.context.metrics
            metrics["operations.insert"] += len(taken) + len(errors)
            metrics["document.inserted"] += len(taken)
            insert_measurements(self.context, self._buckets(), taken.values(), self.retryable)
            for number in sorted((*taken, *errors)):  # no pause since the inserts
                if number in taken:
                    self.done(number, 1)
                else:
                    self._refuse(number, errors[number])
            if errors and self.ordered:
                return False
        return True

    def _buckets(self) -> Buckets:
        txn = self.context.txn
        buckets = buckets_of(txn, txn.collection(self.namespace))
        if buckets is None:
            raise CommandError(175, f"collection '{self.namespace}' was dropped or renamed")
        return buckets

    def _taken_apart(
        self, documents: list[bytes], number: int
    ) -> tuple[dict[int, Measurement], dict[int, CommandError]]:
        """Return the measurements and the errors of invalid ones, by index. If `ordered`, stop at the first error."""
        buckets = self._buckets()
        series = buckets.series
        taken: dict[int, Measurement] = {}
        errors: dict[int, CommandError] = {}
        for index, document in enumerate(documents, number):
            try:
                taken[index] = taken_apart(series, with_id_first(document))
            except CommandError as error:
                errors[index] = error
                if self.ordered:
                    break
        if refused := refused_sources(buckets, taken.values()):
            errors |= {index: refused[item.meta] for index, item in taken.items() if item.meta in refused}
            last = min(errors) if self.ordered else max(*taken, *errors)
            taken = {index: item for index, item in taken.items() if index <= last and item.meta not in refused}
            errors = {index: error for index, error in errors.items() if index <= last}
        return taken, errors

    def _piece(self, documents: list[bytes], number: int) -> bool:
        """Insert one piece. Return False if a refused document ends the command."""
        count = self.count_max  # may become smaller
        if len(documents) > count:
            for start in range(0, len(documents), count):
                self.context.tick()
                if not self._piece(documents[start : start + count], number + start):
                    return False
            return True
        context = self.context
        if context.txn.collection(self.namespace) is None:
            refused_count = self._refused_count(documents, number)
            if refused_count and self.ordered:
                return False
            number, documents = number + refused_count, documents[refused_count:]
            if not documents:
                return True
        there = context.txn.collection(self.namespace)
        if there is not None and there.is_time_series:  # created in a pause
            return self._measurements(documents, 0, number)
        collection = created(context, self.namespace)
        if self.retryable is not None:
            self.retryable.statement = number
        plain = not collection.checks_documents
        context.metrics["operations.insert"] += len(documents)
        if len(documents) > 1 and plain:
            try:
                at_once = self._at_once(collection, documents)
            except TooManyEntries:
                self.count_max = max(1, len(documents) // 4)
                context.metrics["operations.insert"] -= len(documents)
                return self._piece(documents, number)
            if at_once:
                context.metrics["document.inserted"] += len(documents)
                self.done(number + len(documents) - 1, len(documents))
                return True
        target = Target(context, collection)
        measure(context, target)
        goes_on = all(self._one(target, index, document) for index, document in enumerate(documents, number))
        while not plain and capped.make_room(context.txn, target.collection):
            self.context.tick()
        return goes_on

    def _refused_count(self, documents: list[bytes], number: int) -> int:
        """Refuse documents up to the first valid one. Return their number, at most 1 if `ordered`.

        Called if the collection does not exist, so that refused documents do not create it.
        """
        for index, document in enumerate(documents):
            self.context.tick()
            try:
                with_id_first(document)
                return index
            except CommandError as error:
                self.context.metrics["operations.insert"] += 1
                self._refuse(number + index, error)
                if self.ordered:
                    return 1
        return len(documents)

    def _refuse(self, number: int, error: CommandError) -> None:
        if self.retryable is not None:
            self.retryable.statement = number
        self.failed(number, error)

    def _at_once(self, collection: Collection, documents: list[bytes]) -> bool:
        if self.context.has_locks:
            return False
        context = self.context
        keeps = context.keeps_empty_timestamps
        return context.txn.insert_many(collection, documents, self.retryable, keeps_empty_timestamps=keeps) is not None

    def _one(self, target: Target, number: int, document: bytes) -> bool:
        """Insert one document. Return False if it is refused and this ends the command."""
        context = self.context
        if self.retryable is not None:
            self.retryable.statement = number
        try:
            self.context.tick()
            if target.collection.checks_documents:
                document = with_id_first(document)  # the error of the validator has the `_id`
                self.validator.check(target.collection, document)
            insert(context, target, document, self.retryable)
        except CommandError as error:
            self.failed(number, error)
            return not self.ordered
        context.metrics["document.inserted"] += 1
        self.done(number, 1)
        return True


def pauses(engine: Engine, request: Request) -> bool:
    """Whether an insert may take long: always, except for one small document into a collection without checks."""
    documents = request.sequences.get("documents")
    if documents is None or len(documents) != 1 or len(documents[0]) > limits.INSERT_BYTES:
        return True
    name = (request.repeated or request).body["insert"]  # a repeated body need not be decoded
    collection = engine.store.state.catalog.collections.get(f"{request.db}.{name}")
    if collection is None:
        return False
    return (
        collection.checks_documents
        or collection.is_view
        or (len(documents[0]) > limits.KEYS_BYTES and bool(collection.maintained))
    )


COMMAND: Final = Command(
    "insert", run, FIELDS, pauses=pauses, writes=True, requires=writes.INSERT,
    again=again("insert", INSERT, "documents", _insert_one, checks=True),
)  # fmt: skip
