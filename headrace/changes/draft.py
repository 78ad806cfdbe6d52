"""An incomplete event. Token and header are made at once, the other pieces when they are first needed.

    start   [to | txnNumber, lsid] _id operationType clusterTime [collectionUUID] wallTime
    full    [fullDocument]
    rest    ns [documentKey] [operationDescription] [updateDescription] [stateBeforeChange]
    end     [fullDocumentBeforeChange] [nsType]

Rule: a draft belongs to an operation and a shape, and is the same for every stream of that shape, whatever its scope
and pipeline. Do not change the dicts it returns.
"""

from __future__ import annotations

from struct import Struct
from typing import Any
from weakref import ref

from headrace.changes.bson_elements import document_element, document_of
from headrace.changes.full_document import ImageLookup, after_image, before_image
from headrace.changes.operation import Operation
from headrace.changes.stream import Shape
from headrace.values.bson import decode
from headrace.values.token import make_event_token

_PACK = Struct("<i").pack


_BEFORE_DATA: dict[int, bytes] = {}
"""Memo of the bytes before the text of a token without type bits, by the text's length; only for lengths below 1000."""


def token_document(text: str, type_bits: bytes | None) -> bytes:
    """Return `{_data[, _typeBits]}` as BSON."""
    data = text.encode()
    size = len(data)
    if type_bits is None:
        before = _BEFORE_DATA.get(size)
        if before is None:
            before = _PACK(size + 17) + b"\x02_data\0" + _PACK(size + 1)
            if size < 1000:
                _BEFORE_DATA[size] = before
        return b"".join((before, data, b"\0\0"))
    bits = b"".join((b"\x05_typeBits\0", _PACK(len(type_bits)), b"\0", type_bits))
    return b"".join((_PACK(size + 17 + len(bits)), b"\x02_data\0", _PACK(size + 1), data, b"\0", bits, b"\0"))


class Draft:
    """The event of one operation in one shape. Subclasses implement `full` and `rest`."""

    __slots__ = (
        "_core", "_core_fields", "_final", "_final_fields", "_operation", "description", "kind", "shape", "shared",
        "start", "token", "token_document", "token_kind",
    )  # fmt: skip

    def __init__(
        self, operation: Operation, shape: Shape, kind: str, start: bytes, token: str, token_document: bytes
    ) -> None:
        self._operation = ref(operation)  # weak, because the operation refers to its drafts
        self.shape = shape
        self.kind = kind
        """The operationType."""
        self.token_kind = kind
        """The operationType in its token."""
        self.description: bytes | None = None
        """The operationDescription in its token."""
        self.start = start
        self.shared = False
        """Whether the event is the same in all streams of the shape, so that it may be stored for other streams."""
        self.token = token
        self.token_document = token_document
        self._core: bytes | None = None
        self._core_fields: dict[str, Any] | None = None
        self._final: bytes | None = None
        self._final_fields: dict[str, Any] | None = None

    @property
    def operation(self) -> Operation:
        """The operation. The reader of a draft must hold it."""
        operation = self._operation()
        assert operation is not None
        return operation

    def full(self) -> bytes:
        """Return the element `fullDocument` as far as the oplog has it, or nothing."""
        return b""

    def rest(self) -> bytes:
        """Return the elements after `fullDocument`, as far as the oplog has them."""
        return b""

    def key(self) -> bytes | None:
        """Return the document's key in its token."""
        return None

    def fragment_token(self, fragment: int) -> tuple[str, bytes]:
        """Return (text, document) of the token of a fragment, counted from 0."""
        operation = self.operation
        text, bits = make_event_token(
            operation.position, operation.index, operation.uuid, self.token_kind, self.key(), self.description,
            from_invalidate=self.kind == "invalidate", fragment=fragment,
        )  # fmt: skip
        return text, token_document(text, bits)

    @property
    def core(self) -> bytes:
        """The event without the parts that need a look-up outside the oplog."""
        if self._core is None:
            self._core = document_of(b"".join((self.start, self.full(), self.rest())))
        return self._core

    @property
    def core_fields(self) -> dict[str, Any]:
        """`core`, decoded. Do not change it."""
        if self._core_fields is None:
            self._core_fields = decode(self.core)
        return self._core_fields

    @property
    def needs_lookup(self) -> bool:
        """Whether the event shows images."""
        return False

    def final(self, lookup: ImageLookup) -> bytes:
        """Return the complete event before the client's stages. Raises error 47 if a required image is missing."""
        if not self.needs_lookup:
            return self.core
        if self._final is None:
            before = before_image(self, lookup)
            full = after_image(self, before, lookup)
            end = b"" if self.shape.before_change == "off" else _image_element(b"fullDocumentBeforeChange", before)
            self._final = document_of(
                b"".join((self.start, full if full is not None else self.full(), self.rest(), end))
            )
        return self._final

    def final_fields(self, lookup: ImageLookup) -> dict[str, Any]:
        """Return `final`, decoded. Do not change it."""
        if not self.needs_lookup:
            return self.core_fields
        if self._final_fields is None:
            self._final_fields = decode(self.final(lookup))
        return self._final_fields


def _image_element(name: bytes, image: bytes | None) -> bytes:
    return document_element(name, image) if image is not None else b"\x0a" + name + b"\0"


class Invalidate(Draft):
    """The event that ends a stream. Its token is that of the event before it, marked; it has no namespace."""

    __slots__ = ()

    @classmethod
    def of(cls, cause: Draft, version: int, description: bytes | None) -> Invalidate:
        """Return the invalidate that follows `cause`, a command's draft with this operationDescription."""
        operation = cause.operation
        text, bits = make_event_token(
            operation.position, operation.index, operation.uuid, cause.kind, None, description, from_invalidate=True,
            version=version,
        )  # fmt: skip
        document = token_document(text, bits)
        start = b"".join(
            (
                b"\x03_id\0", document, b"\x02operationType\0\x0b\0\0\0invalidate\0", b"\x11clusterTime\0",
                operation.ts, b"\x09wallTime\0", operation.wall,
            )
        )  # fmt: skip
        made = cls(operation, cause.shape, "invalidate", start, text, document)
        made.token_kind, made.description = cause.kind, description
        return made
