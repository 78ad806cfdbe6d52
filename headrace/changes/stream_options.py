"""The parser of `$changeStream` options. Names, types and values are checked as in MongoDB.

Rule: nothing is coerced. An unknown name is error 40415, a wrong type 14, a bad enumeration value 2, in the order in
which the client wrote them. `null` means "not given", but for booleans it is a wrong type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any, Final

from bson import Timestamp

from headrace.errors import CommandError
from headrace.values.bson import to_string, type_name
from headrace.values.token import ResumeToken, decode_token

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
