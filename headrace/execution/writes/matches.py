"""The documents that a write changes, found and changed across pauses.

    for match in matches(context, finder):        in pieces, through the newest view
        latest = current(context, target, finder, match)

A scan that takes longer than a turn and finds few matches continues in a reader process, which returns the matches.

A command may pause between reading a document and changing it: in its filter, its update or a validator. Rule: if the
command has paused since it read a document, it reads the document again before the change. If the document differs, it
must match again, and the change is computed again. A scan goes by record or by `_id`, which no update changes, or
through an index. An index scan may meet a document again after its key has changed, so records are remembered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import partial
from operator import methodcaller
from typing import Any, Final, NamedTuple

from headrace import limits
from headrace.cursors.index_scan import SeenRecords
from headrace.dispatch.context import CommandContext
from headrace.dispatch.lock_waits import wait_until_unlocked
from headrace.errors import CommandError
from headrace.execution.command_memory import memory_of
from headrace.execution.let import CommandVariables
from headrace.execution.near_documents import near_documents
from headrace.execution.plan import Finder
from headrace.execution.planner.query import Order
from headrace.execution.reader_calls import NotAnswered, ask, made_request, may_ask
from headrace.query.document_metadata import MARK
from headrace.query.sort import SortKey
from headrace.running_command import running_command
from headrace.store import capped, catalog_changes
from headrace.store.catalog import Collection, Index
from headrace.store.identity import with_id_first
from headrace.store.view import LEFT_OUT
from headrace.store.write_transaction import RetryableWrite
from headrace.timeseries.series import is_buckets
from headrace.values.bson import decode
from headrace.values.bson.columns import BATCH_COUNT


class MatchedDocument(NamedTuple):
    """A document that matched."""

    record: bytes
    raw: bytes
    document: dict[str, Any]
    pause_count: int
    """The context's `pause_count` when the document was read."""


class Target:
    """The collection that a statement writes to. It may be altered or dropped while the command is paused."""

    __slots__ = ("_collection", "_context", "_namespace", "_pause_count")

    def __init__(self, context: CommandContext, collection: Collection) -> None:
        self._context = context
        self._collection = collection
        self._namespace = collection.namespace
        self._pause_count: int | None = None  # at the last lookup of the collection

    @property
    def collection(self) -> Collection:
        """The collection as it is now. Raises 175 if it was dropped or renamed."""
        context = self._context
        if self._pause_count != context.pause_count:
            now = context.txn.collection(self._namespace)
            if now is None or now.uuid != self._collection.uuid:
                raise CommandError(175, f"collection '{self._namespace}' was dropped or renamed")
            self._collection = now
            self._pause_count = context.pause_count
        return self._collection


def matches(context: CommandContext, finder: Finder, wanted: int | None = None) -> Iterator[MatchedDocument]:
    """Yield the matches, read in pieces, so that no LMDB cursor is open when the command pauses.

    `wanted`: the number of matches that may be enough. The first piece has this number of documents.
    """
    if finder.near is not None:
        yield from _near_matches(context, finder)
        return
    predicate, first, share = finder.predicate, wanted or limits.VIEW_CHUNK_COUNT, _Share()
    pieces = _pieces(context, finder, share, first, limits.VIEW_CHUNK_COUNT, limits.VIEW_CHUNK_BYTES, wanted)
    for piece, pause_count in pieces:
        for record, raw in piece:
            context.tick()
            document = decode(raw)
            if predicate is None or pause_count == _BEFORE or predicate(document):
                share.matched_count += 1
                yield MatchedDocument(record, raw, document, pause_count)


Matches = Sequence[tuple[bytes, bytes]]
"""(record, raw document) of some documents."""


def raw_matches(context: CommandContext, finder: Finder) -> Iterator[tuple[Matches, int]]:
    """Yield the matches of a filter without a `$near`, some at a time, with the `pause_count` when they were read.

    They are not decoded if column tests decide the matches."""
    predicate, keep, share = finder.predicate, finder.keeper(), _Share()
    pieces = _pieces(context, finder, share, limits.VIEW_CHUNK_COUNT, BATCH_COUNT, limits.COLUMN_BYTES, None)
    for piece, pause_count in pieces:
        if predicate is None or pause_count == _BEFORE:
            parts: Iterable[Matches] = (piece,)
        elif keep is not None:
            records = {id(raw): record for record, raw in piece}
            parts = ([(records[id(raw)], raw) for raw in keep([raw for _, raw in piece])],)
        else:  # a slow filter: each match is changed before the next document is tested
            parts = ([item] for item in context.paced(piece) if predicate(decode(item[1])))
        for matched in parts:
            if matched:
                share.matched_count += len(matched)
                yield matched, pause_count


class _Share:
    """The numbers of documents that a scan has examined and that match."""

    __slots__ = ("examined_count", "matched_count")

    def __init__(self) -> None:
        self.examined_count = self.matched_count = 0


def _pieces(
    context: CommandContext, finder: Finder, share: _Share, count: int, count_max: int, bytes_max: int,
    wanted: int | None,
) -> Iterator[tuple[Matches, int]]:  # fmt: skip
    """Yield pieces of documents that may match, each document once; with `_BEFORE`, matches from a reader process.

    `count`: the size of the first piece."""
    after: bytes | None = None
    seen: SeenRecords | None = None
    while True:
        if after is not None and context.pause_count and 2 * share.matched_count <= share.examined_count:
            after = yield from _asked_matches(context, finder, after, wanted)
        context.tick()  # here, not while the piece is read
        pause_count = context.pause_count
        piece = finder.chunk(context.current_view, after, count, bytes_max)
        if (running := running_command()) is not None:
            finder.note_examined(sum(record is not LEFT_OUT for _, record, _ in piece), len(piece))
            running.scan_bytes = sum(len(raw) for _, _, raw in piece)
        if not piece:
            return
        if seen is None and finder.may_repeat:
            seen = SeenRecords(memory_of(context, {}).add)
        shown = [(record, raw) for _, record, raw in piece if record is not LEFT_OUT]
        yield shown if seen is None else [item for item in shown if seen.is_new(item[0])], pause_count
        share.examined_count += len(piece)
        after = piece[-1][0]
        count = min(2 * count, count_max)


def _asked_matches(
    context: CommandContext, finder: Finder, after: bytes, wanted: int | None
) -> Generator[tuple[Matches, int], None, bytes]:
    """Yield the next matches of a scan from a reader process, as long as one answers. Return the position after
    them."""
    fields, collection, variables = finder.scan_fields, finder.collection, finder.variables
    if fields is None or not isinstance(variables, CommandVariables) or variables.client is None:
        return after
    database, _, name = collection.namespace.partition(".")
    fields |= {"uuid": collection.uuid, "variables": variables.all_values(), "limit": wanted}
    while may_ask(context, database):
        body = {"headraceMatches": name, "scan": {**fields, "after": after}, "$db": database}
        try:
            reply = ask(context, made_request(variables.client, body)).reply
        except NotAnswered:
            break
        found = decode(reply)
        yield list(zip(found["records"], found["documents"])), _BEFORE
        after = found["after"]
        if found["isAll"]:
            break
    return after


def _near_matches(context: CommandContext, finder: Finder) -> Iterator[MatchedDocument]:
    """Yield the matches of a filter with a `$near`, the nearest first, each once even if a write moves it."""
    seen = SeenRecords(memory_of(context, {}).add)
    for _, record, raw, _ in near_documents(context, finder):
        context.tick()
        if seen.is_new(record):
            yield MatchedDocument(record, raw, decode(raw), _BEFORE)


_BEFORE: Final = -1
"""The `pause_count` of a document that may have been read long ago: `current` reads it again."""


def while_running(command: str, error: CommandError) -> CommandError:
    """Return an error that a document caused, with the words that say so. A conflict of writes has no such words."""
    return (
        error
        if type(error) is not CommandError or error.code == 112
        else error.behind(f"Plan executor error during {command} :: caused by :: ")
    )


def first_match(context: CommandContext, finder: Finder, key: SortKey | None) -> MatchedDocument | None:
    """Return the first match, in the order of the sort if there is one; or None."""
    if key is None or finder.take_order(context.current_view, Order(key, 1)):
        return next(matches(context, finder, 1), None)
    if key.natural == -1:
        return next(iter(deque(matches(context, finder), maxlen=1)), None)
    return min(matches(context, finder), key=lambda match: key.key(scored(finder, match.document)), default=None)


def scored(finder: Finder, document: dict[str, Any]) -> dict[str, Any]:
    """Return a match with its text score as a mark, if it has one (`query/document_metadata.py`)."""
    score = None if finder.text is None else finder.text.score(document)
    return document if score is None else {**document, MARK: score}


def current(context: CommandContext, target: Target, finder: Finder, match: MatchedDocument) -> MatchedDocument | None:
    """Return the match if the command has not paused since, otherwise read it again; None if it no longer matches."""
    while match.pause_count != context.pause_count:
        pause_count = context.pause_count
        raw = context.txn.by_record(target.collection, match.record)
        if raw is None:
            return None
        if raw == match.raw:
            return match._replace(pause_count=pause_count)
        document = decode(raw)
        is_another = document.get("_id") != match.document.get(
            "_id"
        )  # another document got the record of a deleted one
        if is_another or (finder.predicate is not None and not finder.predicate(document)):
            return None
        match = MatchedDocument(match.record, raw, document, pause_count)
    return match


def is_unchanged(context: CommandContext, target: Target, match: MatchedDocument) -> bool:
    """Whether the document is still as it was when it matched, so that a change computed from it may be written."""
    if match.pause_count == context.pause_count:
        return True
    return context.txn.by_record(target.collection, match.record) == match.raw


def are_unchanged(context: CommandContext, target: Target, matches: Matches, pause_count: int) -> bool:
    """Whether all documents are still as they were when they matched, at `pause_count`."""
    if pause_count == context.pause_count:
        return True
    collection = target.collection
    return all(context.txn.by_record(collection, record) == raw for record, raw in matches)


def measure(context: CommandContext, target: Target) -> None:
    """Measure a capped collection before an insert, so that the insert can make room."""
    while not capped.measure_on(context.txn, target.collection):
        context.tick()


def missing(namespace: str) -> Collection:
    """Return a stand-in for a missing collection, to check a filter, a hint or indexes against."""
    return Collection(namespace, 0, None, "collection", {}, (Index(0, catalog_changes.ID_INDEX),))


def created(context: CommandContext, namespace: str) -> Collection:
    """Return the collection to write to. Create it if it does not exist.

    Raise 166 if a client has made a view or a time series of this name in a pause."""
    while True:
        collection = context.txn.collection(namespace)
        if collection is not None:
            if collection.is_view:
                raise CommandError(166, f"Namespace {namespace} is a view, not a collection")
            return collection
        if may_create(context, namespace, {}):
            return catalog_changes.create(context.txn, namespace, {})


def may_create(context: CommandContext, namespace: str, options: dict[str, Any]) -> bool:
    """Whether a missing collection may be created now. False: the command has waited for a client's transaction that
    held the name, so the collection may exist now. Raise 73 for a bucket collection."""
    if is_buckets(namespace.partition(".")[2]) and "timeseries" not in options:
        raise CommandError(73, f"buckets are created with their time-series collection: {namespace}")
    create = partial(catalog_changes.create, namespace=namespace, options=options)
    return not context.has_locks or wait_until_unlocked(context, create)


def insert(context: CommandContext, target: Target, document: bytes, retryable: RetryableWrite | None = None) -> bytes:
    """Insert a checked document and return it as stored. Raise the errors of `WriteTransaction.insert`, or 175."""
    if len(document) > limits.INSERT_BYTES:
        document = with_id_first(document)
    while context.has_locks and not wait_until_unlocked(context, methodcaller("insert", target.collection, document)):
        pass
    keeps = context.keeps_empty_timestamps
    return context.txn.insert(target.collection, document, retryable, keeps_empty_timestamps=keeps)
