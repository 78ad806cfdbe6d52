"""Events of commands: what happened to collections, indexes and databases, told from `op: "c"` entries.

A command is told as a `CommandDraft` whatever the scope; whether a stream hears it is asked of `concerns`.
Commands that no stream of a single node hears are in `UNTOLD`, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from headrace.changes.draft import Draft, Invalidate, token_document
from headrace.changes.operation import Operation
from headrace.changes.options import Shape
from headrace.changes.parts import document_element, namespace_element, string_element
from headrace.changes.scope import Scope, ScopeKind
from headrace.values.bson import decode, encode
from headrace.values.token import make_event_token

CLASSIC: Final = frozenset({"delete", "drop", "dropDatabase", "insert", "invalidate", "rename", "replace", "update"})
"""What is heard without `showExpandedEvents`."""

UNTOLD: Final = {
    "abortIndexBuild": "internal: nothing came of the build",
    "abortTransaction": "nothing was changed",
    "applyOps": "unwound into its operations when it is a transaction's, otherwise not heard",
    "commitTransaction": "unwound into its operations",
    "convertToCapped": "heard as the rename it ends with",
    "startIndexBuild": "internal: heard as createIndexes when the build is done",
}


@dataclass(frozen=True, slots=True)
class Told:
    """What a command's entry says."""

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
    """The event of one command."""

    __slots__ = ("description", "told", "version")

    def __init__(
        self, operation: Operation, shape: Shape, told: Told, start: bytes, token: str, document: bytes,
        description: bytes | None, version: int,
    ) -> None:  # fmt: skip
        super().__init__(operation, shape, told.kind, start, token, document)
        self.told = told
        self.description = description
        self.version = version

    def identifier(self) -> tuple[bytes | None, bytes | None, bool]:
        return None, self.description, False

    def rest(self) -> bytes:
        told = self.told
        parts = namespace_element(b"ns", told.db, told.coll)
        if not self.shape.expanded:
            return parts
        if self.description is not None:
            parts += document_element(b"operationDescription", self.description)
        if told.state is not None:
            parts += document_element(b"stateBeforeChange", encode(told.state))
        if told.ns_type is not None:
            parts += string_element(b"nsType", told.ns_type)
        return parts

    def concerns(self, scope: Scope) -> bool:
        """Whether a stream of this scope hears the event."""
        told = self.told
        if told.coll is None:
            return scope.matches_database(told.db)
        if scope.matches(f"{told.db}.{told.coll}"):
            return True
        return told.to is not None and scope.matches(".".join(told.to))

    def invalidate(self, scope: Scope) -> Draft | None:
        """What follows this event in a stream of this scope, if the event ends such streams."""
        if scope.kind is ScopeKind.COLLECTION and self.kind in ("drop", "rename"):
            return Invalidate.of(self, self.version, self.description)
        if scope.kind is ScopeKind.DATABASE and self.kind == "dropDatabase":
            return Invalidate.of(self, self.version, self.description)
        return None


def command_draft(operation: Operation, shape: Shape, version: int = 2) -> CommandDraft | None:
    """The draft of a command in one shape; None where streams of that shape do not hear it."""
    o = decode(operation.o)
    tell = TELLERS.get(next(iter(o), ""))
    if tell is None:
        return None
    told = tell(operation.command_namespace.partition(".")[0], o, operation)
    if told.kind not in CLASSIC and not shape.expanded:
        return None
    description = None if told.description is None else encode(told.description)
    start, text, document = opening(operation, told.kind, description, version, shape, operation.uuid)
    if told.to is not None:
        start = namespace_element(b"to", *told.to) + start
    return CommandDraft(operation, shape, told, start, text, document, description, version)


def opening(
    operation: Operation, kind: str, description: bytes | None, version: int, shape: Shape, shown_uuid: bytes | None
) -> tuple[bytes, str, bytes]:
    """(the elements up to wallTime, the token's text, the token's document) of an event that is no document's."""
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


Teller = Callable[[str, dict[str, Any], Operation], Told]


def _without(o: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in o.items() if name not in names}


def _coll_mod(db: str, o: dict[str, Any], operation: Operation) -> Told:
    before = decode(operation.o2) if operation.o2 else {}
    state = {}
    if "collectionOptions_old" in before:
        state["collectionOptions"] = before["collectionOptions_old"]
    if "indexOptions_old" in before:
        state["indexOptions"] = before["indexOptions_old"]
    return Told("modify", db, o["collMod"], _without(o, "collMod"), state=state)


def _commit_index_build(db: str, o: dict[str, Any], operation: Operation) -> Told:
    return Told("createIndexes", db, o["commitIndexBuild"], {"indexes": o["indexes"]})


def _create(db: str, o: dict[str, Any], operation: Operation) -> Told:
    ns_type = "timeseries" if "timeseries" in o else "collection"
    return Told("create", db, o["create"], _without(o, "create"), ns_type=ns_type)


def _create_indexes(db: str, o: dict[str, Any], operation: Operation) -> Told:
    return Told("createIndexes", db, o["createIndexes"], {"indexes": [_without(o, "createIndexes")]})


def _drop(db: str, o: dict[str, Any], operation: Operation) -> Told:
    return Told("drop", db, o["drop"])


def _drop_database(db: str, o: dict[str, Any], operation: Operation) -> Told:
    return Told("dropDatabase", db, None)


def _drop_indexes(db: str, o: dict[str, Any], operation: Operation) -> Told:
    index = decode(operation.o2) if operation.o2 else {}
    return Told("dropIndexes", db, o["dropIndexes"], {"indexes": [index]})


def _rename(db: str, o: dict[str, Any], operation: Operation) -> Told:
    from_db, _, from_coll = o["renameCollection"].partition(".")
    to_db, _, to_coll = o["to"].partition(".")
    description = _without({**o, "to": {"db": to_db, "coll": to_coll}}, "renameCollection", "stayTemp")
    return Told("rename", from_db, from_coll, description, to=(to_db, to_coll))


TELLERS: Final[dict[str, Teller]] = {
    "collMod": _coll_mod,
    "commitIndexBuild": _commit_index_build,
    "create": _create,
    "createIndexes": _create_indexes,
    "drop": _drop,
    "dropDatabase": _drop_database,
    "dropIndexes": _drop_indexes,
    "renameCollection": _rename,
}
