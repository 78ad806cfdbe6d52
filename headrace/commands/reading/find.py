"""find: the documents of a collection, a view or the oplog that match a filter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from struct import Struct
from sys import maxsize
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bson import Int64, ObjectId

from headrace import limits
from headrace.changes.stream import INTERNAL_DATABASES
from headrace.clock import monotonic
from headrace.cursors.collection_scan import Matching, Projected, Skipping, TailableScan
from headrace.cursors.document_cursor import DocumentCursor
from headrace.dispatch import reply
from headrace.dispatch.arguments import Field, Fields, number, without_effect
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import (
    BATCH_SIZE,
    CONSTANTS,
    ENCRYPTION,
    HINT,
    LET,
    QUERY_SETTINGS,
    QUERY_STATS,
    SAMPLED_READ,
)
from headrace.dispatch.namespaces import COLLECTION_UUID, OPLOG, target
from headrace.dispatch.profiling.usage import QUERIES, Key
from headrace.dispatch.reply import closing
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import on_collection
from headrace.errors import CommandError
from headrace.execution.batches import open_cursor, register
from headrace.execution.command_memory import memory_of
from headrace.execution.let import variables_of
from headrace.execution.marked_documents import marks_metadata, shown
from headrace.execution.near_documents import near_metadata
from headrace.execution.plan import Finder, check_hint, checked_hint, collation_of, text_query
from headrace.execution.planner.index_access import IndexRange
from headrace.execution.planner.query import Order
from headrace.execution.sources import Opened, documents, in_order, is_virtual, resolve, stored
from headrace.query.collation import Collation
from headrace.query.document_metadata import DocumentMetadata, Readers, search_score
from headrace.query.expressions.expression import Evaluate
from headrace.query.expressions.numbers import to_long
from headrace.query.match import parse_filter
from headrace.query.match.index_conditions import has_text
from headrace.query.operation_memory import encoded
from headrace.query.projection import Projection, included_fields, parse_projection
from headrace.query.sort import SortKey, parse_sort
from headrace.query.stages.sort_stage import Sort
from headrace.store.catalog import Collection
from headrace.store.lmdb import LmdbError
from headrace.values.bson import decode
from headrace.values.bson.columns import cut_documents
from headrace.values.keystring.encoding import encode_element
from headrace.values.order import equal

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine
    from headrace.geo.near import Near
    from headrace.store.write_transaction import WriteTransaction

_INT32 = Struct("<i").pack
_PLAIN: Final = frozenset({"find", "filter", "limit", "singleBatch", "lsid", "$db", "$clusterTime", "comment"})
"""The fields of a find that do not affect how one document is found by `_id`."""
_BEFORE_CURSOR: Final = 4 + len(b"\x03cursor\x00")
_BEFORE_BATCH: Final = b"\x04firstBatch\x00"
_AROUND_BATCH: Final = 4 + len(_BEFORE_BATCH) + 8
_TOTAL: Final = "commands.find.total"


class _Facts(NamedTuple):
    """The facts that all finds of the same body share."""

    namespace: str
    usage: Key
    after_batch: bytes
    """The end of the element `cursor` in the reply."""


def again(engine: Engine, request: Request, txn: WriteTransaction | None) -> bytes | None:
    """Find one document by `_id` for a client that has sent the same command before, maybe with another `_id`.

    Return the reply; None if the document does not exist or anything is special. See `Command.again`."""
    repeated, store = request.repeated, engine.store
    if repeated is None or not repeated.id_at or engine.fail_points.active or not store.oplog_enabled:
        return None
    if repeated.facts is None:
        repeated.facts = _facts_of(request)
    facts = repeated.facts
    state = store.state
    collection = state.catalog.collections.get(facts.namespace) if facts else None
    if collection is None or collection.is_view or "collation" in collection.options:
        return None
    began, at, tables = monotonic(), repeated.id_at, store.tables
    key = encode_element(repeated.id_type, request.raw[at : at + repeated.id_size])
    try:
        kv = store.published_kv()
        record = kv.get(collection.number_key + key, db=tables["ids"])
        document = None if record is None else kv.get(collection.number_key + record, db=tables["documents"])
    except (CommandError, LmdbError):
        return None  # the command raises the error again
    if document is None:
        return None  # missing or damaged
    engine.metrics[_TOTAL] += 1
    store.uses.ids[collection.number] += 1
    after, end, size = facts.after_batch, closing(state.last_position), len(document)
    cursor_size = _AROUND_BATCH + size + len(after)
    answer = b"".join((
        _INT32(_BEFORE_CURSOR + cursor_size + len(end)), b"\x03cursor\x00", _INT32(cursor_size), _BEFORE_BATCH,
        _INT32(size + 8), b"\x030\x00", document, b"\x00", after, end,
    ))  # fmt: skip
    engine.usage.note_key(facts.usage, monotonic() - began)
    return answer


def _facts_of(request: Request) -> Any:
    """Return the facts of a find that has only plain fields; otherwise False."""
    body = request.body
    if not body.keys() <= _PLAIN or request.db in INTERNAL_DATABASES:  # these have virtual collections
        return False
    try:
        namespace = target(request)
    except CommandError:
        return False
    name = namespace.encode()
    after = b"".join((b"\x12id\x00", bytes(8), b"\x02ns\x00", _INT32(len(name) + 1), name, b"\x00\x00"))
    return _Facts(namespace, (QUERIES, request.db, body["find"]), after)


def negative(path: str, value: Any) -> None:
    """Raise 2 for a negative `skip` or `limit`, with MongoDB's special message."""
    name = path.rpartition(".")[2].capitalize()
    raise CommandError(2, f"{name} value must be non-negative, but received: {to_long(value)}")


def _flag(name: str) -> Field[bool]:
    return Field(name, "optionalBool", False)


def _object(name: str) -> Field[dict[str, Any]]:
    return Field(name, "ownedObject", {})


AWAIT_DATA: Final = _flag("awaitData")
FILTER: Final = _object("filter")
LIMIT: Final = number("limit", least=0, check=negative)
MAX: Final = _object("max")
MIN: Final = _object("min")
PROJECTION: Final = _object("projection")
RETURN_KEY: Final = _flag("returnKey")
SHOW_RECORD_ID: Final = _flag("showRecordId")
SINGLE_BATCH: Final = _flag("singleBatch")
SKIP: Final = number("skip", least=0, check=negative)
SORT: Final = _object("sort")
TAILABLE: Final = _flag("tailable")
FIELDS: Final = Fields(
    _flag("allowDiskUse"), AWAIT_DATA, BATCH_SIZE, _object("collation"), COLLECTION_UUID, FILTER, HINT, LET, LIMIT,
    MAX, MIN, _flag("noCursorTimeout"), PROJECTION, RETURN_KEY, SHOW_RECORD_ID, SINGLE_BATCH, SKIP, SORT, TAILABLE,
    *CONSTANTS, *ENCRYPTION, *QUERY_SETTINGS, *QUERY_STATS, *SAMPLED_READ,
    *without_effect("optionalBool", "allowPartialResults", "readOnce"), *without_effect("bool", "oplogReplay"),
    *without_effect("number", "term"),
    path="FindCommandRequest",
)  # fmt: skip


def run(context: CommandContext, request: Request) -> bytes:
    """find: answer the first batch. The cursor stays open if there may be more documents."""
    body = request.body
    namespace = target(request)
    check(body)
    spec = FILTER.of(body)
    collection = stored(context, namespace)
    check_hint(collection, body.get("hint"))
    if _is_plain_by_id(body, collection):
        finder = Finder(collection, spec, None)  # type: ignore[arg-type]
        if finder.is_by_id:
            match = finder.by_id(context.view)
            batch = reply.array([] if match is None else [match[1]])
            return reply.cursor_elements(b"firstBatch", batch, 0, namespace.encode(), None)
    if collection is not None and collection.is_view:
        return _on_view(context, request, namespace)
    if TAILABLE.of(body):
        return _tail(context, request, namespace, spec, collection)
    skip, limit = SKIP.of(body) or 0, LIMIT.of(body) or None
    matches = selected(context, request, namespace, spec, collection, skip, limit).documents
    size = BATCH_SIZE.of(body)
    single = SINGLE_BATCH.of(body)
    is_there = collection is not None or is_virtual(context, namespace)
    return open_cursor(
        context, request, namespace, matches, size, single_batch=single, limit=limit, id_first=not is_there
    )


def _is_plain_by_id(body: dict[str, Any], collection: Collection | None) -> bool:
    """Whether the find is the commonest one: an `_id`, and no other option."""
    return (
        collection is not None
        and not collection.is_view
        and "collation" not in collection.options
        and (body.keys().isdisjoint(_NOT_PLAIN) or not any(body.get(name) for name in _NOT_PLAIN))
        and body.get("batchSize") is None
    )


_ONLY_FIND: Final = (
    "allowPartialResults", "max", "min", "noCursorTimeout", "readOnce", "returnKey", "showRecordId", "singleBatch",
    "tailable",
)  # fmt: skip
"""The options that a find on a view refuses. `singleBatch` is allowed with a limit of 1."""

_NOT_PLAIN: Final = frozenset({
    "batchSize", "collation", "hint", "let", "max", "min", "projection", "returnKey", "showRecordId", "skip",
    "tailable",
})  # fmt: skip
"""The fields that must be absent or empty in a plain find by `_id`."""


def check(body: dict[str, Any]) -> None:
    """Raise 9 or 2 for fields that do not go together."""
    if "$natural" in (body.get("sort") or {}):
        check_natural(body["sort"], body.get("hint"))
    if "awaitData" not in body and "tailable" not in body:
        return
    if AWAIT_DATA.of(body) and not TAILABLE.of(body):
        raise CommandError(9, "Cannot set 'awaitData' without also setting 'tailable'")
    if not TAILABLE.of(body):
        return
    if SINGLE_BATCH.of(body):
        raise CommandError(2, "cannot use tailable option with the 'singleBatch' option")
    sort = SORT.of(body)
    if sort and sort != {"$natural": 1}:
        raise CommandError(2, "cannot use tailable option with a sort other than {$natural: 1}")


def check_natural(sort: dict[str, Any], hint: Any = None) -> None:
    """Raise 2 for a sort by `$natural` that has another field or direction, or for another hint beside it."""
    if len(sort) > 1 or not any(equal(sort["$natural"], direction) for direction in (1, -1)):
        raise CommandError(2, "$natural sort cannot be set to a value other than -1 or 1.")
    if not hint or equal(hint, sort):
        return
    if type(hint) is dict and "$natural" in hint:
        raise CommandError(2, "$natural hint must be in the same direction as $natural sort order")
    raise CommandError(2, "index hint not allowed with $natural sort order")


Project = Callable[[dict[str, Any]], dict[str, Any]]
_NO_METADATA: Final[Readers] = {}
Count = Callable[[str, Iterator[bytes]], Iterator[bytes]]
"""A function that counts the documents that leave the stage with this name."""


def selected(
    context: CommandContext, request: Request, namespace: str, spec: dict[str, Any], collection: Collection | None,
    skip: int, limit: int | None, count: Count | None = None,
) -> Opened:  # fmt: skip
    """Return the raw results: matched, sorted, skipped, limited, projected. `count`: counts results for explain."""
    body = request.body
    collation = collation_of(collection, body.get("collation"))
    sort = body.get("sort") or {}
    hint = checked_hint(sort if "$natural" in sort else body.get("hint"))
    backward = hint == {"$natural": -1}
    let = variables_of(context, request)
    projection = body.get("projection")
    wanted = None if limit is None else min(skip + limit, maxsize)
    metadata = marks_metadata(projection)
    marked = bool(metadata) or RETURN_KEY.of(body) or SHOW_RECORD_ID.of(body)
    covered = included_fields(projection) if projection and not marked else None
    score = search_score() if has_text(spec) else None
    order = Order(parse_sort(sort, collation, metadata=score) if sort else None, wanted, covered)

    def parsed() -> Project | None:
        if not projection:
            return None
        return _projection(projection, spec, collection, collation, let, order.sort, score, metadata)

    project = None if score is None else parsed()  # decides whether scores are needed
    between = IndexRange(MIN.of(body), MAX.of(body)) if body.get("min") or body.get("max") else None
    if between is not None:
        between.check()
    matches, plan = in_order(
        context, namespace, spec, collation, order, backward=backward, variables=let, hint=hint,
        between=between, marked=marked, explained=count is not None, scored=score is not None and score.is_read,
    )  # fmt: skip
    if count is not None:
        matches = count("FETCH", matches)
    if order.is_asked and (plan is None or not plan.is_sorted):
        assert order.sort is not None
        matches = Sort("$sort", sort, order.sort, wanted, memory_of(context, body)).apply_raw(matches)
        if count is not None:
            matches = count("SORT", matches)
    if skip:
        matches = islice(matches, skip, None)
        if count is not None:
            matches = count("SKIP", matches)
    if limit is not None:
        matches = islice(matches, limit)
    if plan is not None and plan.covered is not None:
        return Opened(matches, plan)
    if score is None:
        project = parsed()
    elif score.is_read:
        project = _of_scored(project, score)
    if plan is not None and marked:
        show = shown(project, projection or {}, with_record=SHOW_RECORD_ID.of(body), with_key=RETURN_KEY.of(body))
        return Opened(map(show, matches), plan)
    if project is None:
        return Opened(matches, plan)
    each = project
    if covered is not None and score is None:
        return Opened(cut_documents(matches, covered, lambda raw: encoded(each(decode(raw)))), plan)
    return Opened((encoded(each(decode(raw))) for raw in matches), plan)


def _projection(
    projection: dict[str, Any], spec: dict[str, Any], collection: Collection | None, collation: Collation | None,
    variables: Mapping[str, Any] | None, sort: SortKey | None = None, score: DocumentMetadata | None = None,
    metadata: Readers = _NO_METADATA,
) -> Projection:  # fmt: skip
    nears: list[Near] = []
    predicate, metadata = None, dict(metadata)
    if spec:
        text = text_query(collection)
        predicate = parse_filter(spec, collation=collation, variables=variables, nears=nears, text=text)
    if nears:
        metadata |= near_metadata(nears[0])
    if score is not None:
        metadata |= score.readers()
    if sort is not None and sort.paths:
        metadata["sortKey"] = _sort_key(sort, score)
    return parse_projection(
        projection, kind="find", collation=collation, variables=variables or {}, predicate=predicate, metadata=metadata
    )


def _sort_key(sort: SortKey, score: DocumentMetadata | None) -> Callable[[], Evaluate]:
    """Return the function that evaluates `{$meta: "sortKey"}`. The documents no longer have their score marks."""
    if score is None:
        return sort.reader
    return lambda: lambda env: sort.values(score.carry(env.root))


def _of_scored(project: Project | None, score: DocumentMetadata) -> Project:
    """Return the projection for documents that are marked with their scores."""
    if project is None:
        return score.note
    return lambda document: project(score.note(document))


def as_pipeline(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pipeline that is equivalent to a find."""
    order = (
        ("$match", "filter"),
        ("$sort", "sort"),
        ("$skip", "skip"),
        ("$limit", "limit"),
        ("$project", "projection"),
    )
    return [{stage: body[field]} for stage, field in order if body.get(field)]


def on_view(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a find for a view. A `$natural` sort becomes a hint for the collection below the view."""
    sort = body.get("sort")
    return {**body, "sort": None, "hint": sort} if sort and "$natural" in sort else body


def _on_view(context: CommandContext, request: Request, namespace: str) -> bytes:
    """Run a find on a view as an aggregation on the underlying collection. Raise 168 for options that only find has."""
    from headrace.execution.pipelines import run_pipeline_on

    body = on_view(request.body)
    for name in _ONLY_FIND:
        if body.get(name) and (name != "singleBatch" or LIMIT.of(body) != 1):
            raise CommandError(168, f"Option {name} not supported in aggregation.")
    _, pipeline = resolve(context, namespace, api_strict=bool(body.get("apiStrict")))
    matches = run_pipeline_on(context, namespace, [*pipeline, *as_pipeline(body)], body, request)
    single = SINGLE_BATCH.of(body)
    limit = LIMIT.of(body) or None
    return open_cursor(context, request, namespace, matches, BATCH_SIZE.of(body), single_batch=single, limit=limit)


def _tail(
    context: CommandContext, request: Request, namespace: str, spec: dict[str, Any], collection: Collection | None
) -> bytes:
    """Open a tailable cursor. Raise 2 unless the namespace is the oplog or a capped collection.

    As in MongoDB, a cursor on an empty collection is closed at once."""
    body = request.body
    is_oplog = namespace == OPLOG and context.store.oplog_enabled
    if collection is None and not is_oplog:
        return reply.cursor_elements(b"firstBatch", reply.array([]), 0, namespace.encode(), None)
    if not is_oplog and not collection.options.get("capped"):  # type: ignore[union-attr]
        raise CommandError(
            2, f"error processing query: ns={namespace} tailable cursor requested on non capped collection"
        )
    cursor = DocumentCursor(
        namespace,
        _tailable(context, request, namespace, spec, None if is_oplog else collection),
        context,
        no_timeout=True,
        limit=LIMIT.of(body) or None,
    )
    cursor.tails = True
    cursor.awaits = AWAIT_DATA.of(body)
    cursor.key = "" if is_oplog or not context.store.oplog_enabled else namespace
    size = BATCH_SIZE.of(body)
    batch = cursor.next_batch(limits.FIRST_BATCH_COUNT if size is None else size)
    if cursor.exhausted or (not is_oplog and context.view.last_record(collection) is None):  # type: ignore[arg-type]
        return reply.cursor_elements(b"firstBatch", reply.array(batch), 0, namespace.encode(), None)
    cursor_id = register(context, request, cursor, batch)
    return reply.cursor_elements(b"firstBatch", reply.array(batch), cursor_id, namespace.encode(), None)


def _tailable(
    context: CommandContext, request: Request, namespace: str, spec: dict[str, Any], collection: Collection | None
) -> Iterator[bytes]:
    """Return the documents of a tailable cursor: matched, skipped, projected. `collection`: None for the oplog."""
    body = request.body
    collation, variables = collation_of(collection, body.get("collation")), variables_of(context, request)
    if collection is None:
        matches = documents(context, namespace, spec, collation, variables=variables)
    else:
        matches = TailableScan(lambda: context.view, collection)
        context.store.uses.tailable_scans[collection.number] += 1
        if spec:
            matches = Matching(matches, parse_filter(spec, collation=collation, variables=variables))
    skip = SKIP.of(body)
    if skip:
        matches = Skipping(matches, skip)
    projection = body.get("projection")
    if projection:
        matches = Projected(matches, _projection(projection, spec, collection, collation, variables))
    return matches


def pauses(engine: Engine, request: Request) -> bool:
    """Whether a find may read more than the one document with the `_id` of its filter."""
    if request.repeated is not None and request.repeated.id_at:
        return False
    spec = request.body.get("filter")
    return type(spec) is not dict or type(spec.get("_id")) not in _ONE_ID


_ONE_ID: Final = frozenset({Int64, ObjectId, int, str})
COMMAND: Final = Command("find", run, FIELDS, pauses=pauses, again=again, requires=on_collection("find"))
