"""The parser of streams: `parse_stream` turns a client's request into a `StreamSpec`, or raises its error.

The checks are in MongoDB's order: each option; whether a stream may be opened on this namespace; whether the resume
options are compatible; each stage after `$changeStream`; the order of the stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.changes.scope import INTERNAL_DATABASES, Scope, ScopeKind
from headrace.changes.stream_options import Shape, StreamOptions, parse_options
from headrace.errors import CommandError
from headrace.query.collation import parse_collation
from headrace.query.pipeline import PipelineContext, parse_pipeline
from headrace.query.stages.stage import Stage
from headrace.values import position
from headrace.values.bson import encode
from headrace.values.position import Position
from headrace.values.token import ResumeToken, high_water_mark

SPLIT: Final = "$changeStreamSplitLargeEvent"
TIME_VARIABLES: Final = (b"$$NOW", b"$$CLUSTER_TIME")


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """One stream as its client requested it, checked. All fields but `resume`, `start_after` and `start_at` may be
    shared."""

    scope: Scope
    shape: Shape
    stages: tuple[Stage, ...]
    """The client's stages after `$changeStream`, without `$changeStreamSplitLargeEvent`."""
    split: bool
    """Whether events that are too large are sent in fragments."""
    context: PipelineContext
    share_key: bytes
    """Streams with the same key have the same events, byte for byte. The resume point is not part of the key."""
    resume: ResumeToken | None = None
    """The client's token, from `resumeAfter` or `startAfter`."""
    start_after: bool = False
    """Whether `resume` was given as `startAfter`, which may continue past an invalidate."""
    start_at: Position | None = None
    """`startAtOperationTime`, inclusive."""
    unbounded: bool = False
    """Whether events may have any size, for a reader without a client's cursor. Otherwise too large events are an
    error."""

    @property
    def start(self) -> Position | None:
        """The first position to read, inclusive; None: begin with the next commit."""
        return self.start_at if self.resume is None else self.resume.cluster_time

    def first_token(self, next_position: Position) -> bytes:
        """Return the postBatchResumeToken (a BSON document) before the first read.

        It is the client's own token, a high-water mark at `startAtOperationTime`, or a high-water mark at
        `next_position`, the position after the last commit when the stream was opened.
        """
        if self.resume is not None:
            return encode(self.resume.document())
        return mark_document(self.start_at if self.start_at is not None else next_position)


def mark_document(at: Position) -> bytes:
    """Return the BSON document of a high-water mark, which means that everything before this position was read."""
    text = high_water_mark(at).encode()
    return b"".join((_size(len(text) + 17), b"\x02_data\0", _size(len(text) + 1), text, b"\0\0"))


def _size(size: int) -> bytes:
    return size.to_bytes(4, "little")


def parse_stream(
    db: str,
    coll: str | None,
    pipeline: Sequence[Mapping[str, Any]],
    *,
    collation: Mapping[str, Any] | None = None,
    api_strict: bool = False,
    context: PipelineContext | None = None,
) -> StreamSpec:
    """Return the stream that `{aggregate: coll or 1, pipeline, collation}` on `db` opens; `coll` is None for 1.

    `pipeline` begins with `$changeStream`. `context` has `let` variables and the time; its collation and namespace are
    set here. The caller checks the readConcern, the transaction, and whether `coll` is a view.
    """
    options = parse_options(pipeline[0]["$changeStream"], api_strict=api_strict)
    scope = _scope(db, coll, options)
    token = _resume_token(options, scope)
    context = replace(
        context or PipelineContext(),
        database=db,
        collection=coll,
        collation=parse_collation(None if collation is None else dict(collation)),
        in_change_stream=True,
    )
    stages = parse_pipeline(pipeline[1:], context=context)
    return StreamSpec(
        scope=scope,
        shape=options.shape,
        stages=tuple(stage for stage in stages if stage.name != SPLIT),
        split=any(stage.name == SPLIT for stage in stages),
        context=context,
        share_key=_share_key(scope, options.shape, pipeline[1:], collation, context),
        resume=token,
        start_after=options.start_after is not None,
        start_at=None if options.start_at is None else position.from_timestamp(options.start_at),
    )


def _scope(db: str, coll: str | None, options: StreamOptions) -> Scope:
    """Return the stream's scope. Raises 72 or 73 if no stream may be opened there."""
    namespace = f"{db}.{coll if coll is not None else '$cmd.aggregate'}"
    system = options.shape.system
    if options.all_for_cluster:
        if db != "admin" or coll is not None:
            raise CommandError(
                72,
                "A $changeStream with 'allChangesForCluster:true' may only be opened on the 'admin' database, and with "
                f"no collection name; found {namespace}",
            )
        return Scope(ScopeKind.DEPLOYMENT, db, None, system)
    if db in INTERNAL_DATABASES and not (db == "config" and options.allow_config):
        raise CommandError(73, f"$changeStream may not be opened on the internal {db} database")
    if coll is None:
        return Scope(ScopeKind.DATABASE, db, None, system)
    if coll.startswith("system.") and not options.allow_system:
        raise CommandError(73, f"$changeStream may not be opened on the internal {namespace} collection")
    return Scope(ScopeKind.COLLECTION, db, coll, system)


def _resume_token(options: StreamOptions, scope: Scope) -> ResumeToken | None:
    """Return the token to resume from, or None. Raises an error if it conflicts with the other options or the scope."""
    if options.resume_after is not None and options.start_after is not None:
        raise CommandError(50865, "Do not specify both 'resumeAfter' and 'startAfter' in a $changeStream stage")
    token = options.resume_after or options.start_after
    if token is None:
        return None
    if options.start_at is not None:
        raise CommandError(40674, "Only one type of resume option is allowed, but multiple were found.")
    if options.resume_after is not None and token.from_invalidate:
        raise CommandError(
            260,
            "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate notification.",
        )
    if scope.is_collection and token.uuid is None and not token.is_high_water_mark:
        message = "Attempted to resume a single-collection stream, but the resume token does not include a UUID."
        raise CommandError(260, message)
    return token


def _share_key(
    scope: Scope,
    shape: Shape,
    pipeline: Sequence[Mapping[str, Any]],
    collation: Mapping[str, Any] | None,
    context: PipelineContext,
) -> bytes:
    """Return, as bytes, everything that determines the stream's events and their form."""
    stages = encode({"pipeline": list(pipeline)})
    variables = {
        name: value
        for name, value in context.variables.items()
        if name not in ("NOW", "CLUSTER_TIME") or any(word in stages for word in TIME_VARIABLES)
    }
    head = (scope.kind.value, scope.db, scope.coll, *(getattr(shape, name) for name in shape.__slots__))
    return encode({"head": list(head), "collation": collation, "let": variables}) + stages
