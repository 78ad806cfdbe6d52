"""Streams: the namespaces that a stream watches, its options, and the parser of a client's request.

    collection   exactly `db.coll`, whatever its name
    database     `db.*`, except names that begin with `$` or `system.`
    deployment   `*.*`, except the databases admin, config and local, and the same names

`showSystemEvents` also includes `system.js`, `system.views`, `system.buckets.*` and `system.resharding.*`. A name that
only starts with `system`, without the dot, is an ordinary name.

`parse_stream` turns a client's request into a `StreamSpec`, or raises its error. The checks are in MongoDB's order:
each option; whether a stream may be opened on this namespace; whether the resume options are compatible; each stage
after `$changeStream`; the order of the stages. No option is coerced. An unknown name is error 40415, a wrong type 14, a
bad enumeration value 2, in the order in which the client wrote them. `null` means "not given", but for booleans it is a
wrong type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from enum import Enum
from typing import Any, Final

from bson import Timestamp

from headrace.errors import CommandError
from headrace.query.collation import parse_collation
from headrace.query.pipeline import PipelineContext, parse_pipeline
from headrace.query.stages.stage import Stage
from headrace.values import position
from headrace.values.bson import encode, to_string, type_name
from headrace.values.position import Position
from headrace.values.token import ResumeToken, decode_token, high_water_mark

INTERNAL_DATABASES: Final = frozenset({"admin", "config", "local"})
VIEWS: Final = "system.views"


class ScopeKind(Enum):
    """The kinds of scope."""

    COLLECTION = "collection"
    DATABASE = "database"
    DEPLOYMENT = "deployment"


@dataclass(frozen=True, slots=True)
class Scope:
    """The namespaces of one stream. `coll` is set only for a collection; `db` is "admin" for the deployment."""

    kind: ScopeKind
    db: str
    coll: str | None = None
    show_system: bool = False

    @property
    def cursor_namespace(self) -> str:
        """The namespace of the stream's cursor, in replies and in getMore."""
        return f"{self.db}.{self.coll if self.coll is not None else '$cmd.aggregate'}"

    @property
    def is_collection(self) -> bool:
        """Whether the scope is one collection."""
        return self.kind is ScopeKind.COLLECTION

    def matches(self, namespace: str) -> bool:
        """Return whether changes of the collection `namespace` ("db.coll") are in this scope."""
        if self.kind is ScopeKind.COLLECTION:
            return namespace == f"{self.db}.{self.coll}"
        db, _, coll = namespace.partition(".")
        return self.matches_database(db) and bool(coll) and not is_hidden(coll, self.show_system)

    def matches_database(self, db: str) -> bool:
        """Return whether a `dropDatabase` of `db` is in this scope. It never is in a collection's stream."""
        if self.kind is ScopeKind.DATABASE:
            return db == self.db
        return self.kind is ScopeKind.DEPLOYMENT and db not in INTERNAL_DATABASES


def is_hidden(coll: str, show_system: bool) -> bool:
    """Return whether streams of a database or the deployment leave out a collection with this name."""
    if coll.startswith("$"):
        return True
    if not coll.startswith("system."):
        return False
    rest = coll[7:]
    return not (show_system and (rest in ("js", "views") or rest.startswith(("buckets.", "resharding."))))


FULL_DOCUMENT: Final = frozenset({"default", "required", "updateLookup", "whenAvailable"})
BEFORE_CHANGE: Final = frozenset({"off", "required", "whenAvailable"})
ENUMERATIONS: Final = {"fullDocument": FULL_DOCUMENT, "fullDocumentBeforeChange": BEFORE_CHANGE}
NULLABLE: Final = frozenset(
    {"fullDocument", "fullDocumentBeforeChange", "resumeAfter", "startAfter", "startAtOperationTime"}
)
TYPES: Final[dict[str, tuple[type, str]]] = {
    "allChangesForCluster": (bool, "bool"),
    "allowToRunOnConfigDB": (bool, "bool"),
    "allowToRunOnSystemNS": (bool, "bool"),
    "fullDocument": (str, "string"),
    "fullDocumentBeforeChange": (str, "string"),
    "matchCollectionUUIDForUpdateLookup": (bool, "bool"),
    "resumeAfter": (dict, "object"),
    "showCommitTimestamp": (bool, "bool"),
    "showExpandedEvents": (bool, "bool"),
    "showMigrationEvents": (bool, "bool"),
    "showRawUpdateDescription": (bool, "bool"),
    "showSystemEvents": (bool, "bool"),
    "startAfter": (dict, "object"),
    "startAtOperationTime": (Timestamp, "timestamp"),
}
NOT_IN_API_V1: Final = ("showExpandedEvents", "showRawUpdateDescription", "showSystemEvents")


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """The options that determine the form of events. In one shape, an entry's event always has the same bytes.

    Shapes are compared by identity, because one is looked up for every event; `intern` makes equal ones the same
    object.
    """

    full_document: str = "default"
    before_change: str = "off"
    expanded: bool = False
    raw_update: bool = False
    system: bool = False
    migration: bool = False
    same_uuid: bool = False
    """Whether updateLookup reads only the entry's own collection, not a later one with the same name."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """All options of a stream, as the client gave them."""

    shape: Shape
    all_for_cluster: bool = False
    allow_config: bool = False
    allow_system: bool = False
    resume_after: ResumeToken | None = None
    start_after: ResumeToken | None = None
    start_at: Timestamp | None = None


_SHAPES: dict[tuple[object, ...], Shape] = {}
"""Memo for all servers of the process. Bounded by the some 400 combinations of the options' values."""


def intern(shape: Shape) -> Shape:
    """Return the single object for all equal shapes."""
    return _SHAPES.setdefault(astuple(shape), shape)


def parse_options(spec: Any, *, api_strict: bool = False) -> StreamOptions:
    """Return the options of `{$changeStream: spec}`. Raises the error of the first wrong option."""
    if not isinstance(spec, dict):
        message = f"$changeStream must take a nested object but found: $changeStream: {to_string(spec)}"
        raise CommandError(6188500, message)
    given = {name: _checked(name, value) for name, value in spec.items()}
    if api_strict:
        _check_api(given)
    return StreamOptions(
        shape=intern(_shape(given)),
        all_for_cluster=bool(given.get("allChangesForCluster")),
        allow_config=bool(given.get("allowToRunOnConfigDB")),
        allow_system=bool(given.get("allowToRunOnSystemNS")),
        resume_after=given.get("resumeAfter"),
        start_after=given.get("startAfter"),
        start_at=given.get("startAtOperationTime"),
    )


def _shape(given: Mapping[str, Any]) -> Shape:
    return Shape(
        full_document=given.get("fullDocument") or "default",
        before_change=given.get("fullDocumentBeforeChange") or "off",
        expanded=bool(given.get("showExpandedEvents")),
        raw_update=bool(given.get("showRawUpdateDescription")),
        system=bool(given.get("showSystemEvents")),
        migration=bool(given.get("showMigrationEvents")),
        same_uuid=bool(given.get("matchCollectionUUIDForUpdateLookup")),
    )


def _checked(name: str, value: Any) -> Any:
    """Return the value of one option, a token already decoded; None if null means not given."""
    if name not in TYPES:
        raise CommandError(40415, f"BSON field '$changeStream.{name}' is an unknown field.")
    if value is None and name in NULLABLE:
        return None
    wanted, wanted_name = TYPES[name]
    if type(value) is not wanted:
        actual = type_name(value)
        message = f"BSON field '$changeStream.{name}' is the wrong type '{actual}', expected type '{wanted_name}'"
        raise CommandError(14, message)
    if name in ENUMERATIONS and value not in ENUMERATIONS[name]:
        message = f"Enumeration value '{value}' for field '$changeStream.{name}' is not a valid value."
        raise CommandError(2, message)
    return decode_token(value) if type(value) is dict else value


def _check_api(given: Mapping[str, Any]) -> None:
    """Raise 323 for options that strict API version 1 does not have, whatever their values."""
    for name in NOT_IN_API_V1:
        if name in given:
            message = f"The '{name}' parameter to $changeStream is not supported in API Version 1"
            raise CommandError(323, message)


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
