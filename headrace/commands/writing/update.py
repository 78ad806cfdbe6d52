"""update: change the documents that match a filter, by operators, a replacement or a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from bson import Timestamp

from headrace import limits
from headrace.commands.requirements import writes
from headrace.commands.writing.write_again import again, found, one_id
from headrace.dispatch.arguments import Field, Fields, array, document, raw_documents, without_effect
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.duplicate_names import update_with_every_name, with_every_name
from headrace.dispatch.generic_arguments import (
    ARRAY_FILTERS,
    BYPASS,
    COLLATION,
    CONSTANTS,
    ENCRYPTION,
    HINT,
    KEEPS_EMPTY_TIMESTAMPS,
    LET,
    MULTI,
    NOT_AN_UPDATE,
    ORDERED,
    SAMPLE,
    TIME_SERIES,
    UPDATE,
    UPSERT,
)
from headrace.dispatch.namespaces import COLLECTION_UUID, check_writable, refused
from headrace.dispatch.namespaces import target as target_of
from headrace.dispatch.profiling.usage import UPDATE as USAGE
from headrace.dispatch.reply import write_errors
from headrace.dispatch.request import Request
from headrace.dispatch.retryable_writes import progress_of, retryable_of, statement_done
from headrace.errors import CommandError
from headrace.execution.let import variables_of
from headrace.execution.plan import Finder, check_hint, collation_of
from headrace.execution.time_series import bucket_hint, buckets_of
from headrace.execution.writes.matches import (
    MatchedDocument,
    Target,
    created,
    first_match,
    matches,
    missing,
    while_running,
)
from headrace.execution.writes.measurements import check_no_transaction
from headrace.execution.writes.updates import HARMLESS, Applier, Changed, parsed
from headrace.query.document_metadata import search_score
from headrace.query.match.index_conditions import has_text
from headrace.query.pipeline import check_stage_names
from headrace.query.sort import parse_sort
from headrace.query.update.update import Diff, Update, UpdateContext, check_upsert_filter
from headrace.query.update.update_parser import parse_update
from headrace.store.catalog import Collection
from headrace.store.write_transaction import RetryableWrite, WriteTransaction
from headrace.time_limit import TookTooLong
from headrace.timeseries.translation import check_update, filter_of_meta, update_of_meta
from headrace.values.bson import decode, encode, find_element
from headrace.values.keystring.encoding import encode_element

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

FIELDS: Final = Fields(
    BYPASS,
    KEEPS_EMPTY_TIMESTAMPS,
    LET,
    ORDERED,
    array("updates"),
    COLLECTION_UUID,
    *CONSTANTS,
    *ENCRYPTION,
    *TIME_SERIES,
)
SORT: Final = document("sort")
STATEMENT: Final = Fields(
    ARRAY_FILTERS, COLLATION, HINT, MULTI, SORT, UPSERT, document("c"), document("q", required=True),
    Field("u", UPDATE, None, required=True, error=NOT_AN_UPDATE), *SAMPLE,
    *without_effect("bool", "upsertSupplied"),
)  # fmt: skip


@dataclass(slots=True)
class Outcome:
    """The result of one statement."""

    matched: int = 0
    modified: int = 0
    upserted: Any = None  # {_id} of the inserted document, if there was one


def run(context: CommandContext, request: Request) -> bytes | dict[str, Any]:
    """update: answer `n` matches, `nModified`, `upserted`, and `writeErrors` by index of the statement."""
    namespace = target_of(request)
    raw = raw_documents(request, "updates")
    statements = [with_every_name(item, decode(item)) for item in (raw if len(raw) == 1 else context.paced(raw))]
    check_writable(namespace)
    context.keeps_empty_timestamps = KEEPS_EMPTY_TIMESTAMPS.of(request.body)
    retryable = retryable_of(context, request)
    if len(statements) == 1:
        try:
            answer = _by_id(context, request, namespace, raw[0], statements[0], retryable)
        except TookTooLong as error:
            return {"n": 0, "nModified": 0, "writeErrors": write_errors([(0, error)])}
        if answer is not None:
            return answer
    for statement in statements:
        check(statement)
        if type(statement["u"]) is list:
            check_stage_names(statement["u"])
    ordered = ORDERED.of(request.body)
    errors = refused(context.txn.collection(namespace), len(statements), ordered=ordered)
    if errors is not None:
        return {"n": 0, "nModified": 0, "writeErrors": errors}
    progress = progress_of(context, n=0, nModified=0, upserted=[], writeErrors=[])
    for index in range(progress["next"], len(statements)):
        if retryable is not None:
            retryable.statement = index
        try:
            outcome = run_statement(context, request, namespace, statements[index], retryable)
        except CommandError as error:
            progress["writeErrors"] += write_errors([(index, error)])
        else:
            progress["n"] += outcome.matched
            progress["nModified"] += outcome.modified
            if outcome.upserted is not None:
                progress["n"] += 1
                progress["upserted"].append({"index": index, "_id": outcome.upserted["_id"]})
        statement_done(progress, index, retryable)
        if ordered and progress["writeErrors"]:
            break
    reply: dict[str, Any] = {"n": progress["n"], "nModified": progress["nModified"]}
    return reply | {name: progress[name] for name in ("upserted", "writeErrors") if progress[name]}


_PLAIN_FIELDS: Final = frozenset({"multi", "q", "u", "upsert"})
_parsed: dict[bytes, Update] = {}
"""A cache for all servers of the process: parsed updates by raw bytes, at most `PARSED_UPDATE_COUNT_MAX`."""


def _by_id(
    context: CommandContext, request: Request, namespace: str, raw: bytes, statement: dict[str, Any],
    retryable: RetryableWrite | None,
) -> bytes | None:  # fmt: skip
    """Run the commonest update fast: operators on one plain `_id`. None: another update, or no such document. Raises
    50."""
    spec, change = statement.get("q"), statement.get("u")
    if type(spec) is not dict or "_id" not in spec or len(spec) != 1 or type(change) is not dict or not change:
        return None
    if statement.keys() - _PLAIN_FIELDS or "let" in request.body or len(raw) > limits.KEYS_BYTES:
        return None  # a long update takes a turn to be parsed
    if statement.get("multi", False) is not False or type(statement.get("upsert", False)) is not bool:
        return None
    txn = context.txn
    collection = txn.collection(namespace)
    if collection is None or collection.options.keys() - HARMLESS:
        return None
    finder = Finder(collection, spec, None)
    try:
        match = finder.by_id(txn) if finder.is_by_id else None  # a plain `_id` is not parsed, so there was no pause
        if match is None:
            return None
        matched = MatchedDocument(match[0], match[1], decode(match[1]), context.pause_count)
        element = find_element(raw, b"u")
        assert element is not None
        update = _cached(raw[element[1] : element[2]], change)
        target = Target(context, collection)
        changed = Applier(context, target, statement, update, finder, request.body, retryable).change(matched)
    except TookTooLong:
        raise  # the general path would take the same time again
    except CommandError:
        return None  # raised again, with its index, by the general path
    if changed is None:
        return None
    modified = changed.after is not None
    context.metrics["document.updated"] += modified
    context.metrics["operations.update"] += 1
    return _ONE_CHANGED if modified else _ONE_MATCHED


_ONE_CHANGED: Final = encode({"n": 1, "nModified": 1})[4:-1]
_ONE_MATCHED: Final = encode({"n": 1, "nModified": 0})[4:-1]


def _cached(change: bytes, decoded: dict[str, Any] | None = None) -> Update:
    """Return the parsed update, from the cache if possible. `decoded`: the same, if the caller has decoded it."""
    update = _parsed.get(change)
    if update is None:
        update = parse_update(update_with_every_name(change, decode(change)) if decoded is None else decoded)
        if len(change) <= limits.PARSED_UPDATE_BYTES_MAX:
            if len(_parsed) >= limits.PARSED_UPDATE_COUNT_MAX:
                _parsed.clear()
            _parsed[change] = update
    return update


_NO_TIME: Final = UpdateContext(0, Timestamp(0, 0))
_TIMESTAMP: Final = 0x11


def _update_one(
    engine: Engine, txn: WriteTransaction, collection: Collection, statement: bytes, retryable: RetryableWrite | None
) -> bytes | None:
    """Update the document with an `_id`: see `write_again.py`."""
    head, end = _HEADS.get(statement[11:12], _NO_HEAD)
    update = _quick.get(statement[end:]) if statement.startswith(head, 4) else None
    if update is not None:
        key = encode_element(statement[11], statement[16:end])
    else:
        parts = _id_and_change(statement)
        if parts is None:
            return None
        key, change = parts
        update = _quick_update(change, statement[end:] if statement.startswith(head, 4) else b"")
        if update is None:
            return None
    match = found(txn, collection, key)
    if match is None:
        return None
    record, old = match
    new, logged = update.apply_raw(old, _NO_TIME) or _decoded_and_applied(update, old)
    if logged:
        # The raw filter is `{_id}`, unless the stored number has another type.
        identity = statement[7 : end + 1] if end and old.startswith(statement[11:end], 4) else None
        txn.replace(collection, record, old, new, logged, retryable, update.fields, identity)
        engine.metrics["document.updated"] += 1
    engine.metrics["operations.update"] += 1
    engine.store.uses.ids[collection.number] += 1
    return _ONE_CHANGED if logged else _ONE_MATCHED


def _decoded_and_applied(update: Update, old: bytes) -> tuple[bytes, bytes]:
    """Return the document after the update and the `o` of its entry, which is empty if nothing changes."""
    applied = update.apply(decode(old), _NO_TIME)
    if applied.change is None:
        return old, b""
    new = encode(applied.document)
    return new, encode(applied.change.entry) if type(applied.change) is Diff else new


_SIZES: Final = {0x07: 12, 0x10: 4, 0x12: 8}
_HEADS: Final = {
    bytes((kind,)): (b"\x03q\x00" + Struct("<iB").pack(size + 10, kind) + b"_id\x00", 16 + size)
    for kind, size in _SIZES.items()
}
"""The beginning of a statement `{q: {_id: value}, ...}`, after its length, and the end of the value, by the value's
type."""
_NO_HEAD: Final = b"\xff", 0
_quick: dict[bytes, Update] = {}
"""A cache like `_parsed`, of the updates that `_quick_update` returns, by the statement's bytes after the `_id`."""


def _quick_update(change: bytes, rest: bytes) -> Update | None:
    """Return the parsed update if `_update_one` may apply it. `rest`: the key in `_quick`; empty: it has none."""
    if _TIMESTAMP in change or b"$currentDate" in change:  # it may need a new position
        return None
    update = _cached(change)
    if update.needs_position or update.kind == "pipeline":
        return None
    if rest and len(rest) <= limits.PARSED_UPDATE_BYTES_MAX:
        if len(_quick) >= limits.PARSED_UPDATE_COUNT_MAX:
            _quick.clear()
        _quick[rest] = update
    return update


def check(statement: dict[str, Any]) -> None:
    """Raise 9, 14, 40414 or 40415 for an invalid statement, before any statement runs."""
    STATEMENT.check("update.updates", statement)
    if SORT.of(statement) and MULTI.of(statement):
        raise CommandError(9, "Cannot specify sort with multi=true")


def run_statement(
    context: CommandContext,
    request: Request,
    namespace: str,
    statement: dict[str, Any],
    retryable: RetryableWrite | None,
) -> Outcome:
    """Run one statement of an update command."""
    context.metrics["operations.update"] += 1
    pause_count = context.pause_count
    try:
        return _run_statement(context, request, namespace, statement, retryable)
    except CommandError as error:
        if error.code != 11000 or not UPSERT.of(statement) or pause_count == context.pause_count:
            raise
    return _run_statement(context, request, namespace, statement, retryable)  # inserted meanwhile


def _run_statement(
    context: CommandContext, request: Request, namespace: str, statement: dict[str, Any],
    retryable: RetryableWrite | None,
) -> Outcome:  # fmt: skip
    collection = context.txn.collection(namespace)
    if collection is not None and collection.is_time_series:
        return _measurements(context, request, collection, statement, retryable)
    if retryable is not None and MULTI.of(statement):
        raise CommandError(72, "Cannot use (or request) retryable writes with multi=true")
    let = variables_of(context, request)
    update = parsed(statement, collection, let)
    upsert = UPSERT.of(statement)
    if upsert:
        check_upsert_filter(statement["q"])
    check_hint(collection, statement.get("hint"))
    collation = collation_of(collection, statement.get("collation"))
    if collection is None:
        Finder(missing(namespace), statement["q"], collation, let, statement.get("hint") if upsert else None)
        if not upsert:
            return Outcome()
        collection = created(context, namespace)
        collation = collation_of(collection, statement.get("collation"))
    finder = Finder(collection, statement["q"], collation, let, statement.get("hint"))
    target = Target(context, collection)
    applier = Applier(context, target, statement, update, finder, request.body, retryable)
    try:
        return _applied(context, finder, applier, statement, collation)
    except CommandError as error:
        raise while_running("update", error) from None


def _applied(
    context: CommandContext, finder: Finder, applier: Applier, statement: dict[str, Any], collation: Any
) -> Outcome:
    """Change the matches of a statement, or insert a document if there are none and the statement says so."""
    outcome = Outcome()
    if MULTI.of(statement) and finder.near is None:
        for matched, modified in applier.change_all():
            outcome.matched += matched
            outcome.modified += modified
            context.metrics["document.updated"] += modified
    else:
        for changed in _changes(context, finder, applier, statement, collation):
            outcome.matched += 1
            if changed.after is not None:
                outcome.modified += 1
                context.metrics["document.updated"] += 1
    if not outcome.matched and UPSERT.of(statement):
        outcome.upserted = applier.insert(statement["q"])
    return outcome


def _measurements(
    context: CommandContext, request: Request, collection: Collection, statement: dict[str, Any],
    retryable: RetryableWrite | None,
) -> Outcome:  # fmt: skip
    """Change the meta field of measurements in a time series, one bucket at a time. Raise 72 for any other update."""
    check_no_transaction(context, "update", collection.namespace)
    buckets = buckets_of(context.txn, collection)
    assert buckets is not None
    series = buckets.series
    check_update(series, multi=MULTI.of(statement), upsert=UPSERT.of(statement))
    spec = filter_of_meta(series, statement["q"])
    translated = {**statement, "q": spec, "u": update_of_meta(series, statement["u"])}
    let = variables_of(context, request)
    update = parsed(translated, buckets.collection, let)
    collation = collation_of(collection, statement.get("collation"))
    finder = Finder(buckets.collection, spec, collation, let, bucket_hint(series, statement.get("hint")))
    target = Target(context, buckets.collection)
    applier = Applier(context, target, translated, update, finder, request.body, retryable)
    outcome = Outcome()
    for changed in _changes(context, finder, applier, translated, collation):
        count = changed.before["control"]["count"]
        outcome.matched += count
        if changed.after is not None:
            outcome.modified += count
            context.metrics["document.updated"] += count
    return outcome


def _changes(
    context: CommandContext, finder: Finder, applier: Applier, statement: dict[str, Any], collation: Any
) -> Iterator[Changed]:
    """Change the matches of a statement (all, the first, or the first by its sort), and yield each."""
    if not statement.get("sort"):
        for match in matches(context, finder, None if MULTI.of(statement) else 1):
            changed = applier.change(match)
            if changed is not None:
                yield changed
                if not MULTI.of(statement):
                    return
        return
    score = search_score() if has_text(statement["q"]) else None
    key = parse_sort(statement["sort"], collation, metadata=score)
    while (first := first_match(context, finder, key)) is not None:
        changed = applier.change(first)
        if changed is not None:  # otherwise changed meanwhile: find the first match again
            yield changed
            return


_FALSE, _TRUE = b"\x00", b"\x01"
_MULTI: Final = b"\x08multi\x00" + _FALSE
_FLAGS: Final = frozenset(
    one + other for one in (b"", _MULTI) for other in (b"", b"\x08upsert\x00" + _FALSE, b"\x08upsert\x00" + _TRUE)
)
_SIZE = Struct("<i").unpack_from


def pauses(engine: Engine, request: Request) -> bool:
    """Whether an update may take long: it may read more than one document by `_id`, or wait for a transaction."""
    statements = request.sequences.get("updates")
    if statements is None or len(statements) != 1 or len(statements[0]) > limits.KEYS_BYTES:
        return True
    collection = engine.store.catalog.collections.get(f"{request.db}.{request.body['update']}")
    if collection is None or collection.options.keys() - HARMLESS or engine.store.transactions.locks:
        return True
    return _id_and_change(statements[0]) is None


def _id_and_change(statement: bytes) -> tuple[bytes, bytes] | None:
    """Return (key of the `_id`, raw `u`) for a statement `{q: {_id: value}, u: {...}}`, which may also have
    `multi: false` and `upsert`; None for any other."""
    located = one_id(statement)
    if located is None:
        return None
    key, start = located
    if statement[start : start + 3] != b"\x03u\x00" or len(statement) < start + 8:
        return None
    end = start + 3 + _SIZE(statement, start + 3)[0]
    return (key, statement[start + 3 : end]) if statement[end:-1] in _FLAGS else None


COMMAND: Final = Command(
    "update", run, FIELDS, pauses=pauses, writes=True, requires=writes.UPDATE,
    again=again("update", USAGE, "updates", _update_one),
)  # fmt: skip
