"""Events of documents: insert, update, replace, delete; joined from slices of the oplog entry.

Only updates that do more than set or add whole fields are decoded, for their description.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from headrace.changes.bson_elements import string_element
from headrace.changes.draft import Draft, token_document
from headrace.changes.event import Event
from headrace.changes.full_document import KINDS_WITH_PRE_IMAGE
from headrace.changes.operation import Head, Operation
from headrace.changes.stream import Shape
from headrace.values.bson import decode, encode
from headrace.values.token import TokenMaker, make_event_token

Components = tuple[str | int, ...]


def describe(diff: dict[str, Any], *, expanded: bool = False) -> dict[str, Any]:
    """Return the description, with its fields in the order of events. `diff` is the entry's decoded `o.diff`."""
    reader = _DiffReader()
    reader.document(diff, "", (), False)
    description: dict[str, Any] = {
        "updatedFields": reader.updated,
        "removedFields": reader.removed,
        "truncatedArrays": reader.truncated,
    }
    if expanded:
        description["disambiguatedPaths"] = reader.ambiguous
    return description


class _DiffReader:
    """Walks a diff and collects the lists of the description."""

    __slots__ = ("ambiguous", "removed", "truncated", "updated")

    def __init__(self) -> None:
        self.updated: dict[str, Any] = {}
        self.removed: list[str] = []
        self.truncated: list[dict[str, Any]] = []
        self.ambiguous: dict[str, list[str | int]] = {}

    def document(self, diff: dict[str, Any], prefix: str, components: Components, ambiguous: bool) -> None:
        """Read a document's diff. `prefix`: the dotted path to it, with a final dot; `ambiguous`: whether that path
        is."""
        for section in ("u", "i"):
            for name, value in diff.get(section, {}).items():
                self.updated[prefix + name] = value
                self._report(prefix, components, name, ambiguous)
        for name in diff.get("d", {}):
            self.removed.append(prefix + name)
            self._report(prefix, components, name, ambiguous)
        for section, child in diff.items():
            if section[0] == "s":
                name = section[1:]
                self._child(child, prefix + name, (*components, name), ambiguous or _is_ambiguous(name, components))

    def array(self, diff: dict[str, Any], path: str, components: Components, ambiguous: bool) -> None:
        """Read an array's diff. `path`: the dotted path to it; `ambiguous`: whether that path is."""
        if "l" in diff:
            self.truncated.append({"field": path, "newSize": diff["l"]})
            if ambiguous:
                self.ambiguous[path] = list(components)
        prefix = path + "."
        for key, value in diff.items():
            if key[0] == "u":
                self.updated[prefix + key[1:]] = value
                if ambiguous:
                    self.ambiguous[prefix + key[1:]] = [*components, int(key[1:])]
        for key, child in diff.items():
            if key[0] == "s":
                self._child(child, prefix + key[1:], (*components, int(key[1:])), ambiguous)

    def _child(self, diff: dict[str, Any], path: str, components: Components, ambiguous: bool) -> None:
        if diff.get("a") is True:
            self.array(diff, path, components, ambiguous)
        else:
            self.document(diff, path + ".", components, ambiguous)

    def _report(self, prefix: str, components: Components, name: str, ambiguous: bool) -> None:
        if ambiguous or _is_ambiguous(name, components):
            self.ambiguous[prefix + name] = [*components, name]


def _is_ambiguous(name: str, above: Components) -> bool:
    """Return whether a field's name may be mistaken for a dotted path or, below the top level, for an array index."""
    return "." in name or (bool(above) and name.isascii() and name.isdigit() and (name == "0" or name[0] != "0"))


_PACK = Struct("<i").pack
_INT32 = Struct("<i").unpack_from
_NOTHING_ELSE: Final = encode({"removedFields": [], "truncatedArrays": []})[4:]  # and the document's end
_ID: Final = b"\x03_id\0"
_FULL: Final = b"\x03fullDocument\0"
_PLAIN_DIFF: Final = (b"\x03diff\0", b"\x03u\0", b"\x03i\0")


class EventTemplate:
    """The bytes that all events of one head in one shape share."""

    __slots__ = (
        "before_time", "before_wall", "fixed_bytes", "maker", "needs_lookup", "ns", "shape", "shows_document", "uuid",
    )  # fmt: skip

    def __init__(self, head: Head, shape: Shape) -> None:
        kind = head.kind
        self.shape = shape
        self.maker = None if head.uuid is None else TokenMaker(head.uuid, kind)
        self.before_time = string_element(b"operationType", kind) + b"\x11clusterTime\0"
        shows_uuid = shape.expanded and head.uuid is not None
        self.uuid = b"\x05collectionUUID\0\x10\0\0\0\x04" + (head.uuid or b"") if shows_uuid else b""
        self.before_wall = self.uuid + b"\x09wallTime\0"
        self.ns = head.ns_element + b"\x03documentKey\0"
        self.shows_document = kind in ("insert", "replace")
        self.needs_lookup = (kind in KINDS_WITH_PRE_IMAGE and shape.before_change != "off") or (
            kind == "update" and shape.full_document != "default"
        )
        fixed = (_ID, self.before_time, self.before_wall, self.ns, _FULL if self.shows_document else b"")
        self.fixed_bytes = 4 + sum(map(len, fixed)) + 8 + 8 + 1


def template_of(head: Head, shape: Shape) -> EventTemplate:
    """Return the template of this head and shape, which is made once."""
    template: EventTemplate | None = head.templates.get(shape)
    if template is None:
        template = head.templates[shape] = EventTemplate(head, shape)
    return template


class CrudDraft(Draft):
    """The draft of one changed document's event."""

    __slots__ = ("template",)

    def __init__(
        self, operation: Operation, template: EventTemplate, kind: str, start: bytes, token: str, token_document: bytes
    ) -> None:
        super().__init__(operation, template.shape, kind, start, token, token_document)
        self.template = template

    @property
    def needs_lookup(self) -> bool:
        return self.template.needs_lookup

    def key(self) -> bytes | None:
        return self.operation.o2

    def full(self) -> bytes:
        return _FULL + self.operation.o if self.template.shows_document else b""

    def rest(self) -> bytes:
        fields = self.template.ns + self.operation.o2
        return fields + description(self.operation.o, self.shape) if self.kind == "update" else fields


def description(o: bytes, shape: Shape) -> bytes:
    """Return the element `updateDescription`, or `rawUpdateDescription` if the shape wants the oplog's own."""
    return update_name(shape) + described(o, shape)


def update_name(shape: Shape) -> bytes:
    """Return the bytes of that element before its document."""
    return b"\x03rawUpdateDescription\0" if shape.raw_update else b"\x03updateDescription\0"


def described(o: bytes, shape: Shape) -> bytes:
    """Return the document of that element."""
    if shape.raw_update:
        return o
    plain = None if shape.expanded else plain_description(o)
    return encode(describe(decode(o)["diff"], expanded=shape.expanded)) if plain is None else plain


def plain_description(o: bytes) -> bytes | None:
    """Return the description of an update that only sets or only adds whole fields, whose bytes are already there.

        o = {$v: 2, diff: {u: {...}}}     or  {$v: 2, diff: {i: {...}}}

    Return None for any other update.
    """
    diff, set_fields, new_fields = _PLAIN_DIFF
    if not o.startswith(diff, 12) or not (o.startswith(set_fields, 22) or o.startswith(new_fields, 22)):
        return None
    end = 25 + _INT32(o, 25)[0]
    if end + 1 != 18 + _INT32(o, 18)[0]:
        return None
    fields = o[25:end]
    return b"".join((_PACK(len(fields) + 23 + len(_NOTHING_ELSE) - 4), b"\x03updatedFields\0", fields, _NOTHING_ELSE))


def crud_draft(operation: Operation, shape: Shape, version: int = 2) -> Draft:
    """Return the draft of one changed document. Except for old token versions it is made once per shape."""
    head = operation.head
    assert head is not None
    template = template_of(head, shape)
    key = operation.o2
    maker = template.maker
    if version == 2 and maker is not None:
        text, bits = maker.crud(operation.position, key[4], key[9:-1], operation.index)
    else:
        text, bits = make_event_token(
            operation.position, operation.index, head.uuid, head.kind, key, None, version=version
        )
    document = token_document(text, bits)
    start = b"".join((_ID, document, template.before_time, operation.ts, template.before_wall, operation.wall))
    if operation.session is not None:
        session = operation.session
        start = b"".join((b"\x12txnNumber\0", session.txn_number, b"\x03lsid\0", session.lsid, start))
    draft = CrudDraft(operation, template, head.kind, start, text, document)
    draft.shared = version == 2
    return draft


def event(operation: Operation, shape: Shape) -> Event | None:
    """Return the unchanged event of an operation in one step; None if the entry alone is not enough.

    The event is too large for a reply only if its document is; the caller checks that.
    """
    head = operation.head
    assert head is not None
    template: EventTemplate = head.templates.get(shape) or template_of(head, shape)
    if template.needs_lookup or template.maker is None or operation.session is not None:
        return None
    fields = head, operation.o, operation.o2, operation.ts, operation.wall
    return event_of(*fields, operation.position, shape, operation.index)


def event_of(
    head: Head, o: bytes, key: bytes, ts: bytes, wall: bytes, position: int, shape: Shape, index: int = 0
) -> Event:
    """Return the event of an operation outside a transaction, made from the entry alone. Arguments: see `Operation`."""
    template: EventTemplate = head.templates.get(shape) or template_of(head, shape)
    maker = template.maker
    assert maker is not None
    text, bits = maker.crud(position, key[4], key[9:-1], index)
    token = token_document(text, bits)
    size = template.fixed_bytes + len(token) + len(key)
    if template.shows_document:
        pieces: tuple[bytes, ...] = (
            _PACK(size + len(o)), _ID, token, template.before_time, ts, template.before_wall, wall, _FULL, o,
            template.ns, key, b"\0",
        )  # fmt: skip
    else:
        update = description(o, shape) if head.kind == "update" else b""
        pieces = (
            _PACK(size + len(update)), _ID, token, template.before_time, ts, template.before_wall, wall, template.ns,
            key, update, b"\0",
        )  # fmt: skip
    return Event(text, token, position, b"".join(pieces))


def header(operation: Operation) -> dict[str, Any]:
    """Return the event's fields that filters use most, without building the event. The dict is made once and must not
    be changed."""
    if operation.seen_header is None:
        head = operation.head
        assert head is not None
        body = b"".join(
            (
                string_element(b"operationType", head.kind), b"\x11clusterTime\0", operation.ts, b"\x09wallTime\0",
                operation.wall, head.ns_element, b"\x03documentKey\0", operation.o2, b"\0",
            )
        )  # fmt: skip
        operation.seen_header = decode(_PACK(len(body) + 4) + body)
    return operation.seen_header
