"""Events of commands: changes of collections, indexes and databases, from `op: "c"` entries.

A command becomes a `CommandDraft` whatever the scope; `concerns` tells whether it belongs to a stream. `UNREPORTED`
lists commands that no stream of a single node returns, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from headrace.changes.bson_elements import document_element, namespace_element, string_element
from headrace.changes.draft import Draft, Invalidate, token_document
from headrace.changes.operation import Operation
from headrace.changes.stream import Scope, ScopeKind, Shape
from headrace.timeseries.series import PREFIX
from headrace.values.bson import decode, encode
from headrace.values.token import make_event_token

CLASSIC: Final = frozenset({"delete", "drop", "dropDatabase", "insert", "invalidate", "rename", "replace", "update"})
"""The events of streams without `showExpandedEvents`."""

UNREPORTED: Final = {
    "abortIndexBuild": "internal: nothing came of the build",
    "abortTransaction": "nothing was changed",
    "applyOps": "unwound into its operations when it is a transaction's, otherwise not an event",
    "commitTransaction": "unwound into its operations",
    "convertToCapped": "reported as the rename it ends with",
    "startIndexBuild": "internal: reported as createIndexes when the build is done",
}


@dataclass(frozen=True, slots=True)
class CommandChange:
    """The effect of a command, parsed from its entry."""

    kind: str
    db: str
    coll: str | None
    """None for a whole database."""
    description: dict[str, Any] | None = None
    to: tuple[str, str] | None = None
    """(db, coll) of the new name."""
    state: dict[str, Any] | None = None
    ns_type: str | None = None


class CommandDraft(Draft):
    """The draft of one command's event."""

    __slots__ = ("change", "version")

    def __init__(
        self, operation: Operation, shape: Shape, change: CommandChange, start: bytes, token: str, document: bytes,
        description: bytes | None, version: int,
    ) -> None:  # fmt: skip
        super().__init__(operation, shape, change.kind, start, token, document)
        self.change = change
        self.description = description
        self.version = version

    def rest(self) -> bytes:
        change = self.change
        fields = namespace_element(b"ns", change.db, change.coll)
        if not self.shape.expanded:
            return fields
        if self.description is not None:
            fields += document_element(b"operationDescription", self.description)
        if change.state is not None:
            fields += document_element(b"stateBeforeChange", encode(change.state))
        if change.ns_type is not None:
            fields += string_element(b"nsType", change.ns_type)
        return fields

    def concerns(self, scope: Scope) -> bool:
        """Return whether the event belongs to streams of this scope."""
        change = self.change
        if change.coll is None:
            return scope.matches_database(change.db)
        if scope.matches(f"{change.db}.{change.coll}"):
            return True
        return change.to is not None and scope.matches(".".join(change.to))

    def invalidate(self, scope: Scope) -> Draft | None:
        """Return the invalidate after this event in a stream of this scope; None if the event does not end such
        streams."""
        if scope.kind is ScopeKind.COLLECTION and self.kind in ("drop", "rename"):
            return Invalidate.of(self, self.version, self.description)
        if scope.kind is ScopeKind.DATABASE and self.kind == "dropDatabase":
            return Invalidate.of(self, self.version, self.description)
        return None


def command_draft(operation: Operation, shape: Shape, version: int = 2) -> CommandDraft | None:
    """Return the draft of a command in one shape; None if streams of that shape do not have it."""
    o = decode(operation.o)
    parse = COMMAND_PARSERS.get(next(iter(o), ""))
    if parse is None:
        return None
    change = parse(operation.command_namespace.partition(".")[0], o, operation)
    if change.kind not in CLASSIC and not shape.expanded:
        return None
    description = None if change.description is None else encode(change.description)
    start, text, document = opening(operation, change.kind, description, version, shape, operation.uuid)
    if change.to is not None:
        start = namespace_element(b"to", *change.to) + start
    return CommandDraft(operation, shape, change, start, text, document, description, version)


def opening(
    operation: Operation, kind: str, description: bytes | None, version: int, shape: Shape, shown_uuid: bytes | None
) -> tuple[bytes, str, bytes]:
    """Return (elements up to wallTime, token text, token document) for an event that is not a document's."""
    text, bits = make_event_token(
        operation.position, operation.index, operation.uuid, kind, None, description, version=version
    )
    document = token_document(text, bits)
    uuid = b"\x05collectionUUID\0\x10\0\0\0\x04" + shown_uuid if shape.expanded and shown_uuid else b""
    session = operation.session
    txn = b"".join((b"\x12txnNumber\0", session.txn_number, b"\x03lsid\0", session.lsid)) if session else b""
    start = b"".join(
        (
            txn, b"\x03_id\0", document, string_element(b"operationType", kind), b"\x11clusterTime\0", operation.ts,
            uuid, b"\x09wallTime\0", operation.wall,
        )
    )  # fmt: skip
    return start, text, document


CommandParser = Callable[[str, dict[str, Any], Operation], CommandChange]


def _without(o: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in o.items() if name not in names}


def _coll_mod(db: str, o: dict[str, Any], operation: Operation) -> CommandChange:
    before = decode(operation.o2) if operation.o2 else {}
    state = {}
    if "collectionOptions_old" in before:
        state["collectionOptions"] = before["collectionOptions_old"]
    if "indexOptions_old" in before:
        state["indexOptions"] = before["indexOptions_old"]
    return CommandChange("modify", db, o["collMod"], _without(o, "collMod"), state=state)


def _commit_index_build(db: str, o: dict[str, Any], operation: Operation) -> CommandChange:
    return CommandChange("createIndexes", db, o["commitIndexBuild"], {"indexes": o["indexes"]})


def _create(db: str, o: dict[str, Any], operation: Operation) -> CommandChange:
    ns_type = "timeseries" if "timeseries" in o else "collection"
    return CommandChange("create", db, o["create"], _without(o, "create"), ns_type=ns_type)


def _create_indexes(db: str, o: dict[str, Any], operation: Operation) -> CommandChange:
    return CommandChange("createIndexes", db, o["createIndexes"], {"indexes": [_without(o, "createIndexes")]})


def _drop(db: str, o: dict[str, Any], operation: Operation) -> CommandChange:
    return CommandChange("drop", db, o["drop"])


def _drop_database(db: str, o: dict[str, Any], operation: Operation) -> CommandChange:
    return CommandChange("dropDatabase", db, None)


def _drop_indexes(db: str, o: dict[str, Any], operation: Operation) -> CommandChange:
    index = decode(operation.o2) if operation.o2 else {}
    return CommandChange("dropIndexes", db, o["dropIndexes"], {"indexes": [index]})


def _rename(db: str, o: dict[str, Any], operation: Operation) -> CommandChange:
    from_db, _, from_coll = o["renameCollection"].partition(".")
    to_db, _, to_coll = o["to"].partition(".")
    description = _without({**o, "to": {"db": to_db, "coll": to_coll}}, "renameCollection", "stayTemp")
    return CommandChange("rename", from_db, from_coll, description, to=(to_db, to_coll))


COMMAND_PARSERS: Final[dict[str, CommandParser]] = {
    "collMod": _coll_mod,
    "commitIndexBuild": _commit_index_build,
    "create": _create,
    "createIndexes": _create_indexes,
    "drop": _drop,
    "dropDatabase": _drop_database,
    "dropIndexes": _drop_indexes,
    "renameCollection": _rename,
}


# Views. A view is a document of `system.views`, and a change of that document is a change of the view.


_OF_VIEWS: Final = {"delete": "drop", "insert": "create", "replace": "modify"}


def view_draft(operation: Operation, shape: Shape, version: int = 2) -> CommandDraft | None:
    """Return the draft of a view's change by an operation on `system.views`; None if it is not an event.

    Only streams with `showExpandedEvents` have these events, and a collection's stream never does. The document's `_id`
    is the view's namespace, and its other fields are the operationDescription, except for a drop.
    """
    assert operation.head is not None
    kind = _OF_VIEWS.get(operation.head.kind)
    if kind is None or not shape.expanded:
        return None
    definition = decode(operation.o)
    db, _, coll = definition.pop("_id").partition(".")
    description = None if kind == "drop" else definition
    is_series = "timeseries" in definition or definition.get("viewOn") == PREFIX + coll
    ns_type = "timeseries" if is_series else "view"
    change = CommandChange(kind, db, coll, description, ns_type=ns_type if kind == "create" else None)
    raw = None if description is None else encode(description)
    start, text, document = opening(operation, kind, raw, version, shape, None)
    return CommandDraft(operation, shape, change, start, text, document, raw, version)
