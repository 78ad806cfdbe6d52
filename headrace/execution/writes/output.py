"""The writing end of `$out` and `$merge`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from bson import ObjectId, Timestamp

from headrace import limits
from headrace.dispatch.context import CommandContext
from headrace.dispatch.lock_waits import wait_until_unlocked, wait_until_unused
from headrace.dispatch.namespaces import check_namespace, writable
from headrace.dispatch.request import Request
from headrace.errors import AnsweredError, CommandError, HandedOver
from headrace.execution.command_memory import memory_of
from headrace.execution.plan import Finder
from headrace.execution.reader_calls import NotAnswered, asked_documents, reading_part
from headrace.execution.time_series import FIELD as SERIES_FIELD
from headrace.execution.time_series import (
    Buckets,
    buckets_namespace,
    buckets_of,
    create_buckets,
    create_series_view,
    shown_options,
)
from headrace.execution.time_series import checked as checked_series
from headrace.execution.writes.changed_documents import shape_of
from headrace.execution.writes.matches import (
    MatchedDocument,
    Target,
    created,
    first_match,
    insert,
    is_unchanged,
    measure,
    missing,
)
from headrace.execution.writes.measurements import insert_measurements
from headrace.execution.writes.validation import Validator
from headrace.query.expressions.numbers import is_nullish
from headrace.query.operation_memory import StageMemory, Tape, encoded_for_storage
from headrace.query.update.update import Diff, Update, UpdateContext, upsert_document
from headrace.query.update.update_parser import parse_update
from headrace.running_command import running_command
from headrace.store import catalog_changes
from headrace.store.catalog import Collection
from headrace.store.identity import with_id_first
from headrace.store.indexes.index_entries import collation_of_index
from headrace.store.write_transaction import WriteTransaction
from headrace.timeseries.bucket import taken_apart
from headrace.timeseries.series import PREFIX, Series
from headrace.values.bson import MISSING, encode
from headrace.values.paths import get_path

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

_BEFORE_WRITING: Final = frozenset({51132, 51183, 51185})
"""Errors of a `$merge` that MongoDB raises before it writes a batch."""

_BY_FIELDS: Final = frozenset({"keepExisting", "merge"})
"""Modes of a `$merge` that MongoDB carries out with `$set` and `$setOnInsert`."""

_INFIX: Final = ".tmp.agg_out."
_TEMPORARY: Final = re.compile(
    rf"[^.]+((\.system\.buckets)?({re.escape(_INFIX)}[0-9a-f]{{24}}|\.tmp[0-9a-f]{{5}}\.renameCollection)"
    r"|\.tmp[0-9a-f]{5}\.convertToCapped\..+)"
)
"""The names of the temporary collections of `$out`, of renames into other databases and of `convertToCapped`."""


def left_behind(engine: Engine) -> list[str]:
    """Return the temporary collections of a command that failed, or that the server's end interrupted."""
    names = engine.store.catalog.collections
    return [name for name in names if ".tmp" in name and name not in engine.temporary and _TEMPORARY.fullmatch(name)]


def drop_temporary(txn: WriteTransaction, names: list[str]) -> None:
    """Drop temporary collections that were left behind."""
    for name in names:
        collection = txn.collection(name)
        if collection is not None:
            catalog_changes.drop(txn, collection)


def write_output(
    context: CommandContext, request: Request, stage: Any, read: Callable[[], Iterator[bytes]]
) -> Iterator[bytes]:
    """Write the results of a pipeline as its last stage says. Return no documents.

    `read` returns the raw results of the other stages at each call."""
    writes = stage.writes
    goal = check_namespace(f"{writes.database}.{writes.collection}")
    series = _series_option(context, goal, writes) if writes.kind == "out" else None
    existing = writable(context, goal) if series is None else None
    if writes.kind == "out" and existing is not None and existing.capped is not None:
        raise CommandError(17152, f"namespace '{goal}' is capped so it can't be used for $out")
    if writes.kind == "merge":
        _check_on(existing or missing(goal), writes)
    with memory_of(context, {}).stage(stage.name) as memory:
        with context.one_state():  # read everything before the first write
            tape = _kept(context, request, read(), memory) or Tape(read(), memory, without_asking=True)
        made = tape.documents()
        if series is not None:
            _out_series(context, goal, made, series)
        elif writes.kind == "out":
            _out(context, goal, made, Validator(request.body, context))
        else:
            _merge_all(context, goal, writes, made, Validator(request.body, context))
    return iter(())


def _kept(
    context: CommandContext, request: Request, documents: Iterator[bytes], memory: StageMemory
) -> Tape | None:  # fmt: skip
    """Return all documents. If that takes longer than a turn, let a reader process read them. None: read them again."""
    turn = running_command()
    part = None if turn is None else reading_part(context.engine, request)
    if turn is None or part is None:
        return Tape(documents, memory, without_asking=True)
    turn.begins_again = True
    try:
        return Tape(documents, memory, without_asking=True)
    except HandedOver:
        pass
    finally:
        turn.begins_again = False
    try:
        return Tape(asked_documents(context, part), memory, without_asking=True)
    except NotAnswered:
        return None


@contextmanager
def temporary_collection(context: CommandContext, namespace: str) -> Iterator[None]:
    """Reserve a temporary collection of this name inside the `with`. Drop the collection if the command fails."""
    context.engine.temporary.add(namespace)
    try:
        yield
    except AnsweredError:
        left = context.txn.collection(namespace)
        if left is not None:
            catalog_changes.drop(context.txn, left)
        raise
    finally:
        context.engine.temporary.discard(namespace)


def _out(
    context: CommandContext, goal: str, documents: Iterator[dict[str, Any]], validator: Validator
) -> None:  # fmt: skip
    """Replace the collection by a new one with the documents, and with the old name, options and indexes."""
    temporary = f"{goal.partition('.')[0]}{_INFIX}{ObjectId()}"
    with temporary_collection(context, temporary):
        like = context.txn.collection(goal)
        target = _temporary(context, temporary, like)
        shape = shape_of(like or target.collection)
        measure(context, target)
        for document in documents:
            context.tick()
            raw = encoded_for_storage(document)
            validator.check(target.collection, raw)
            insert(context, target, raw)
        wait_until_unused(context, goal)
        old = context.txn.collection(goal)
        if old is not None and old.is_view:
            raise CommandError(166, f"Namespace {goal} is a view, not a collection")
        _require_shape(old, shape, goal)
        catalog_changes.rename(context.txn, target.collection, goal, old)


def _require_shape(now: Collection | None, shape: Any, goal: str) -> None:
    """Raise 125 if the collection to replace exists with other options or indexes than `shape`, so that no index is
    lost that a client made during the `$out`."""
    if now is None:
        return
    for number, name in enumerate(("collection options", "indexes")):
        if shape_of(now)[number] != shape[number]:
            raise CommandError(125, f"{name} of target collection {goal} changed during processing")


def _series_option(context: CommandContext, goal: str, writes: Any) -> dict[str, Any] | None:
    """Return the option `timeseries` for the target of an `$out`; None for an ordinary collection.

    Raise the errors of `create`, 7268700 if the target is an ordinary collection, 7406103 if it is a time series with
    other options.
    """
    asked = None
    if writes.time_series is not None:
        assert SERIES_FIELD.fields is not None
        SERIES_FIELD.fields.check("$out.timeseries", writes.time_series)
        asked = checked_series(writes.time_series)
    existing = context.txn.collection(goal)
    there = buckets_of(context.txn, existing)
    if there is not None:
        stored: dict[str, Any] = there.collection.options["timeseries"]
        if asked not in (None, stored):
            raise CommandError(7406103, f"the time-series collection {goal} has other options than those of $out")
        return stored
    if asked is not None and existing is not None:
        raise CommandError(7268700, f"Cannot create a time-series collection: {goal} exists and is none")
    return asked


def _out_series(
    context: CommandContext, goal: str, documents: Iterator[dict[str, Any]], option: dict[str, Any]
) -> None:  # fmt: skip
    """Replace the buckets of a time series, as `_out` replaces a collection."""
    database, txn = goal.partition(".")[0], context.txn
    temporary = f"{database}.{PREFIX}{_INFIX[1:]}{ObjectId()}"
    with temporary_collection(context, temporary):
        old = buckets_of(txn, txn.collection(goal))
        options = {"timeseries": option} if old is None else shown_options(old.collection)
        target = Target(context, create_buckets(txn, temporary, options))
        more = [] if old is None else old.collection.indexes
        shape = None if old is None else shape_of(old.collection)
        names = {index.name for index in target.collection.indexes}
        catalog_changes.create_indexes(txn, target.collection, [item.spec for item in more if item.name not in names])
        series = Series.of(option)
        while some := list(islice(documents, limits.INSERT_COUNT)):
            context.tick()
            measurements = [taken_apart(series, with_id_first(encoded_for_storage(item))) for item in some]
            insert_measurements(context, Buckets(target.collection, series), measurements, None)
        wait_until_unused(context, goal)
        old = buckets_of(context.txn, context.txn.collection(goal))
        if old is None and context.txn.collection(goal) is not None:
            raise CommandError(7268700, f"Cannot create a time-series collection: {goal} exists and is none")
        if old is not None:
            _require_shape(old.collection, shape or shape_of(target.collection), goal)
        to = buckets_namespace(goal)
        catalog_changes.rename(context.txn, target.collection, to, context.txn.collection(to))
        if old is None:
            create_series_view(context.txn, goal, options)


def _temporary(context: CommandContext, namespace: str, like: Collection | None) -> Target:
    """Create the temporary collection that will replace `like`, with its options and indexes."""
    txn = context.txn
    new = catalog_changes.create(txn, namespace, {} if like is None else dict(like.options))
    if like is not None and len(like.indexes) > 1:
        catalog_changes.create_indexes(txn, new, [index.spec for index in like.indexes if not index.is_of_id])
    return Target(context, new)


def _merge_all(
    context: CommandContext, goal: str, writes: Any, documents: Iterator[dict[str, Any]], validator: Validator
) -> None:  # fmt: skip
    """Merge all documents. The writes of a batch are unordered, as in MongoDB: the first error is raised at its end."""
    failure: CommandError | None = None
    for number, document in enumerate(documents, 1):
        context.tick()
        try:
            _merge(context, goal, writes, document, validator)
        except CommandError as error:
            if error.code in _BEFORE_WRITING:
                raise
            failure = failure or error
        if failure is not None and number % limits.WRITE_BATCH_COUNT_MAX == 0:
            break
    if failure is not None:
        raise failure


def _merge(
    context: CommandContext, goal: str, writes: Any, document: dict[str, Any], validator: Validator
) -> None:  # fmt: skip
    """Merge one document into its match, or insert it. Try again if the match has changed meanwhile."""
    if "_id" not in document and writes.on == ("_id",):
        document = {"_id": ObjectId(), **document}
    tried = False
    while True:
        collection = writable(context, goal) or _created(context, goal, writes, document)
        if collection is None:
            return
        _check_on(collection, writes)
        _check_values(collection, writes.on, document)
        target = Target(context, collection)
        identity = _identity(writes.on, document)
        match = first_match(context, Finder(collection, identity, writes.collation), None)
        pause_count = context.pause_count
        write = _merged(context, writes, match, document, identity, partial(validator.check, collection))
        if write is None:
            return
        try:
            if (match is None or is_unchanged(context, target, match)) and write(target, context):
                return
        except CommandError as error:
            if error.code != 11000 or match is not None or pause_count == context.pause_count or tried:
                raise
            tried = True  # another client has inserted the missing document


def _identity(on: tuple[str, ...], document: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the `on` fields by path, as a filter. A missing field counts as null."""
    values = ((path, get_path(document, tuple(path.split(".")))) for path in on)
    return {path: None if value is MISSING else value for path, value in values}


def _check_values(collection: Collection, on: tuple[str, ...], document: dict[str, Any]) -> None:
    """Raise 51185 if an `on` field is an array, 51132 if it is missing and only sparse indexes have the fields."""
    for path in on:
        value = get_path(document, tuple(path.split(".")))
        if type(value) is list:
            raise CommandError(51185, "$merge write error: 'on' field cannot be an array")
        if is_nullish(value) and not any(
            set(index.spec["key"]) == set(on) and not index.spec.get("sparse") for index in collection.indexes
        ):
            raise CommandError(51132, "$merge write error: 'on' field cannot be missing, null or undefined")


def _created(context: CommandContext, goal: str, writes: Any, document: dict[str, Any]) -> Collection | None:
    """Create the collection for an inserted document. Return None if `whenNotMatched` discards the document."""
    _check_on(missing(goal), writes)
    result = writes.decide(None, document)
    if result is None:
        return None
    with_id_first(encoded_for_storage(result))
    return created(context, goal)


Write = Callable[[Target, CommandContext], bool]
"""A function that makes a change. It returns False if it had to wait for a lock and changed nothing."""


def _merged(
    context: CommandContext, writes: Any, match: MatchedDocument | None, document: dict[str, Any],
    identity: dict[str, Any], check: Callable[..., None],
) -> Write | None:  # fmt: skip
    """Return the write that merges a document into `match`; None: nothing to write. `check` raises 121."""
    result = writes.decide(None if match is None else match.document, document)
    if result is None:
        return None
    if match is None:
        if writes.when_matched in _BY_FIELDS:
            result = _upserted(context, identity, result)
        raw = encoded_for_storage(result)
        check(raw)
        return partial(_insert, raw)
    if result.get("_id") != match.document["_id"]:
        raise CommandError(66, "$merge failed to update the matching document, did you attempt to modify the _id?")
    times = UpdateContext(context.txn.wall_ms, Timestamp(0, 0))
    applied = _change(writes, document, result).apply(match.document, times)
    if applied.change is None:
        return None
    new = encoded_for_storage(applied.document)
    check(new, match.raw)
    logged = encode(applied.change.entry) if type(applied.change) is Diff else new
    return partial(_replace, match, new, logged)


def _upserted(context: CommandContext, identity: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """Return the document that an upsert with `$set` inserts: the `on` fields, then the others in the order of `$set`.

    `$set` would read names with dots as paths: such a document is returned as it is.
    """
    names = [name for name in document if name != "_id"]
    if any(not name or "." in name or "$" in name for name in names):
        return document
    if "_id" in identity and names == sorted(names) and not any(name.isdigit() for name in names):
        return document
    times = UpdateContext(context.txn.wall_ms, Timestamp(0, 0), inserting=True)
    return upsert_document(parse_update({"$set": document}), identity, times)


def _insert(raw: bytes, target: Target, context: CommandContext) -> bool:
    measure(context, target)
    if context.has_locks and not wait_until_unlocked(context, lambda txn: txn.insert(target.collection, raw)):
        return False
    context.txn.insert(target.collection, raw, keeps_empty_timestamps=context.keeps_empty_timestamps)
    return True


def _replace(match: MatchedDocument, new: bytes, logged: bytes, target: Target, context: CommandContext) -> bool:
    write = target.collection, match.record, match.raw, new, logged
    if context.has_locks and not wait_until_unlocked(context, lambda txn: txn.replace(*write)):
        return False
    context.txn.replace(*write)
    return True


def _change(writes: Any, document: dict[str, Any], result: dict[str, Any]) -> Update:
    """Return a merge of `document` as an update, as MongoDB logs it: `$set`, a replacement, or a pipeline."""
    if writes.when_matched == "merge":
        return parse_update({"$set": {name: value for name, value in document.items() if name != "_id"}})
    if writes.when_matched == "replace":
        return parse_update(result)
    return parse_update([{"$replaceWith": {"$literal": result}}])


def _check_on(collection: Collection, writes: Any) -> None:
    """Raise 51183 unless a unique index has exactly the given fields, for all documents and with the same collation."""
    if not writes.is_on_given or (not collection.indexes and writes.on == ("_id",)):
        return  # without indexes, the collection is created
    for index in collection.indexes:
        is_of_all = (index.unique or index.is_of_id) and "partialFilterExpression" not in index.spec
        has_fields = is_of_all and set(index.spec["key"]) == set(writes.on)
        if has_fields and collation_of_index(index) == writes.collation:
            return
    raise CommandError(51183, "Cannot find index to verify that join fields will be unique")
