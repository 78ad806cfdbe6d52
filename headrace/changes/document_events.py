"""Events of documents: insert, update, replace, delete; joined from slices of the oplog entry.

Only updates that do more than set or add whole fields are decoded, for their description.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from headrace.changes.bson_elements import string_element
from headrace.changes.description import describe
from headrace.changes.draft import Draft, token_document
from headrace.changes.event import Event
from headrace.changes.full_document import KINDS_WITH_PRE_IMAGE
from headrace.changes.operation import Head, Operation
from headrace.changes.stream_options import Shape
from headrace.values.bson import decode, encode
from headrace.values.token import TokenMaker, make_event_token

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

    def identifier(self) -> tuple[bytes | None, bytes | None, bool]:
        return self.operation.o2, None, False

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
