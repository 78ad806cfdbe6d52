"""`$changeStream`: opening a stream, and reading the store for its events."""

from __future__ import annotations

from typing import Any, Final

from headrace import limits
from headrace.changes.builder import EventBuilder
from headrace.changes.stream import StreamSpec, parse_stream
from headrace.cursors.change_cursor import ChangeCursor
from headrace.dispatch import reply
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import BATCH_SIZE, READ_CONCERN
from headrace.dispatch.namespaces import check_database, check_namespace, check_without_collection
from headrace.dispatch.request import Request
from headrace.errors import AnsweredError, CommandError
from headrace.execution.batches import register
from headrace.execution.let import variables_of
from headrace.query.pipeline import PipelineContext
from headrace.store import pre_images
from headrace.store.store import Store
from headrace.store.view import View
from headrace.values.keystring.encoding import encode_element

STANDALONE: Final = "The $changeStream stage is only supported on replica sets"


class ImageReader:
    """Reads the store for event builders: current documents, pre-images and post-images, and older entries.

    All streams with the same share key share an event builder, which outlives commands. So each read has its own
    transaction.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def current(self, namespace: str, uuid: bytes | None, document_key: bytes) -> bytes | None:
        """Return the current document with this `{_id}`, or None."""
        collection = self._store.catalog.collections.get(namespace)
        if collection is None or collection.is_view or (uuid is not None and collection.uuid != uuid):
            return None
        id_key = encode_element(document_key[4], document_key[9:-1])
        kv = self._store.begin_read()  # like `reading`, but cheaper
        try:
            match = View(self._store, kv).by_id(collection, id_key)
        finally:
            kv.abort()
        return None if match is None else match[1]

    def pre_image(self, uuid: bytes, position: int, index: int) -> bytes | None:
        """Return the image stored with the change at `index` of the entry at `position`, or None."""
        with self._store.reading() as view:
            return pre_images.get(view, uuid, position, index)

    def entry(self, position: int) -> bytes | None:
        """Return the oplog entry at a position, or None."""
        with self._store.reading() as view:
            return view.entry(position)


def opens_a_stream(pipeline: list[dict[str, Any]]) -> bool:
    """Whether the pipeline begins with `$changeStream`. In a later place, the stage is the parser's error 40602."""
    return bool(pipeline) and "$changeStream" in pipeline[0] and len(pipeline[0]) == 1


def open_stream(context: CommandContext, request: Request, pipeline: list[dict[str, Any]]) -> bytes:
    """Open a stream and return the reply with its first batch, which has events only if the stream begins in the
    past."""
    body = request.body
    spec = stream_spec(context, request, pipeline)
    if body.get("cursor") is None:
        raise CommandError(9, "The 'cursor' option is required, except for aggregate with the explain argument")
    size = BATCH_SIZE.of(body["cursor"])
    builder = context.engine.feeds.builder(spec.share_key)
    if builder is None:
        lookup = ImageReader(context.store)
        builder = EventBuilder(spec, lookup, lookup, context.engine.count)
    cursor = ChangeCursor(spec, builder, context.engine.feeds, context, context.clock.monotonic_ms)
    try:
        batch = cursor.next_batch(context, limits.FIRST_BATCH_COUNT if size is None else size)
    except AnsweredError:
        cursor.close()
        raise
    cursor_id = 0 if cursor.closed else register(context, request, cursor, batch.documents)
    before, behind = reply.cursor_envelope(
        b"firstBatch",
        reply.array(batch.documents),
        cursor.namespace_bytes,
        batch.token,
        invalidated=cursor.closed,
    )
    return before + cursor_id.to_bytes(8, "little") + behind


def stream_spec(context: CommandContext, request: Request, pipeline: list[dict[str, Any]]) -> StreamSpec:
    """Return the stream that a request opens. Raise an error for invalid options or an invalid target."""
    body = request.body
    if not context.store.oplog_enabled:
        raise CommandError(40573, STANDALONE)
    name = body[request.name]
    coll = None
    if type(name) is str:
        check_namespace(f"{request.db}.{name}")
        coll = name
    else:
        check_database(request.db)
        check_without_collection(name)
    variables = variables_of(context, request)
    spec = parse_stream(
        request.db, coll, pipeline, collation=body.get("collation"), api_strict=bool(body.get("apiStrict")),
        context=PipelineContext(database=request.db, collection=coll, variables=variables),
    )  # fmt: skip
    _check_surroundings(context, request, coll)
    return spec


def _check_surroundings(context: CommandContext, request: Request, coll: str | None) -> None:
    body = request.body
    if "autocommit" in body:
        raise CommandError(
            263,
            "Operation not permitted in transaction :: caused by :: Aggregation stage $changeStream cannot run within "
            "a multi-document transaction.",
        )
    level = READ_CONCERN.of(body).get("level")
    if level not in (None, "majority"):
        raise CommandError(
            72,
            "Aggregation stage $changeStream cannot run with a readConcern other than 'majority'. Current readConcern: "
            f"{level}",
        )
    collection = context.view.collection(f"{request.db}.{coll}") if coll else None
    if collection is not None and collection.is_time_series:
        raise CommandError(166, f"$changeStream is not supported on time-series collections: {collection.namespace}")
    if collection is not None and collection.is_view:
        raise CommandError(166, f"$changeStream is not supported on views: {collection.namespace} is a view")
