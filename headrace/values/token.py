"""Resume tokens of change streams: made byte for byte like MongoDB, and decoded, or refused with MongoDB's code.

Rule: tokens sort as text in the order of events; a high-water mark sorts before every event of its time.

    clusterTime | version | tokenType | txnOpIndex | fromInvalidate | uuid | eventIdentifier | fragmentNum | 04

as keystrings in upper-case hexadecimal. Omitted, by version:

    version 0   no tokenType, no fromInvalidate; no uuid if there is none; the identifier is the documentKey
    version 1   no uuid if there is none; the identifier of classic events is the documentKey (or nothing)
    version 2   uuid null if there is none; the identifier is {operationType, documentKey | operationDescription}

High-water marks have no identifier, and only fragments of split events have a fragmentNum. Source: the project's
reference, section 2.6.

Rule: any token that a MongoDB client may have is accepted: lower-case digits, a missing end byte, bytes after the end,
more fields than `_data`, missing type bits, versions 0 to 2.

This module does not check whether the event exists: reading the stream shows it (`changes/resume.py`). Numbers 6189500
to 6189505 are MongoDB's for invalid identifiers. The meaning of each number is our guess.
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import CommandError
from headrace.values.bson import find_element, first_element, to_compact_string
from headrace.values.keystring.decoding import decode_all
from headrace.values.keystring.encoding import END, GENERAL_TYPES, TypeBits, encode_element, encode_fields, integer_key

_STRING, _OBJECT, _BINARY, _OBJECT_ID, _BOOL = 0x02, 0x03, 0x05, 0x07, 0x08
_DATE, _NULL, _INT, _TIMESTAMP = 0x09, 0x0A, 0x10, 0x11
VERSION_LATEST: Final = 2
HIGH_WATER_MARK: Final = 0
EVENT: Final = 128

_FALSE, _TRUE, _NULL_KEY, _UUID = b"\x6e", b"\x6f", b"\x14", b"\x5a\x10\x04"

# Version 1 identifies the events of these operations by their documentKey alone, all others as version 2 does.
CLASSIC_OPERATIONS: Final = frozenset(
    "delete drop dropDatabase insert invalidate migrateChunkToNewShard rename replace reshardBegin "
    "reshardBlockingWrites reshardDoneCatchUp update".split()
)
_ID_FIELDS: Final = {bson_type: general + b"_id\0" for bson_type, general in GENERAL_TYPES.items()}
# Types of `_id` whose type bits may not all be zero: doubles, nested types, symbols, longs, decimals.
_TYPED: Final = frozenset((0x01, 0x03, 0x04, 0x0E, 0x0F, 0x12, 0x13))


def make_event_token(
    cluster_time: int,
    txn_op_index: int,
    uuid: bytes | None,
    operation_type: str,
    document_key: bytes | None,
    operation_description: bytes | None,
    from_invalidate: bool = False,
    fragment: int | None = None,
    version: int = VERSION_LATEST,
) -> tuple[str, bytes | None]:
    """`(token, type bits or None)` of one event.

    `document_key` and `operation_description` are raw BSON documents. A token with a key has no description. An
    invalidate has the token of the event before it, with `from_invalidate`.
    """
    identifier = event_identifier(operation_type, document_key, operation_description, version)
    text = assemble(cluster_time, EVENT, txn_op_index, from_invalidate, uuid, identifier, fragment, version)
    return text, event_bits(identifier, fragment, version)


def event_bits(identifier: bytes | None, fragment: int | None, version: int) -> bytes | None:
    """The type bits of an event's token; None if it has none."""
    bits = _leading_bits(version)
    if identifier is not None:
        bits.add_element(_OBJECT, identifier)
    if fragment is not None:
        bits.add_element(_INT, b"")
    return bits.stored()


def high_water_mark(cluster_time: int, version: int = VERSION_LATEST) -> str:
    """The token of a position: all events before the position were seen, and none at it."""
    return assemble(cluster_time, HIGH_WATER_MARK, 0, False, None, None, None, version)


def assemble(
    cluster_time: int,
    token_type: int,
    txn_op_index: int,
    from_invalidate: bool,
    uuid: bytes | None,
    identifier: bytes | None,
    fragment: int | None,
    version: int,
) -> str:
    """Make the token of these fields. `identifier` is a raw BSON object, or None."""
    segments = [
        b"\x82",
        cluster_time.to_bytes(8, "big"),
        _head(version, token_type),
        integer_key(txn_op_index),
        _after_index(version, from_invalidate, uuid),
    ]
    if identifier is not None:
        segments += (b"\x46", encode_fields(identifier))
    if fragment is not None:
        segments.append(integer_key(fragment))
    segments.append(END)
    return b"".join(segments).hex().upper()


def event_identifier(
    operation_type: str, document_key: bytes | None, operation_description: bytes | None, version: int
) -> bytes | None:
    """The raw BSON object that distinguishes this event from others at its position; None if there is none."""
    if version < VERSION_LATEST and operation_type in CLASSIC_OPERATIONS:
        return document_key
    name = operation_type.encode()
    body = b"\x02operationType\0" + (len(name) + 1).to_bytes(4, "little") + name + b"\0"
    if document_key is not None:
        body += b"\x03documentKey\0" + document_key
    elif operation_description is not None:
        body += b"\x03operationDescription\0" + operation_description
    return (len(body) + 5).to_bytes(4, "little") + body + b"\0"


class TokenMaker:
    """Makes the tokens of one collection's inserts (or updates, ...) whose documentKey is the `_id` alone.

    Everything except time, index and `_id` is prepared in advance, because every changed document gets a token.
    """

    __slots__ = ("_before_id", "_before_object_id", "_end", "_head", "_head_of_first", "_long_bits", "_version")

    def __init__(self, uuid: bytes, operation_type: str, version: int = VERSION_LATEST) -> None:
        named = version >= VERSION_LATEST or operation_type not in CLASSIC_OPERATIONS
        before = _after_index(version, False, uuid) + b"\x46"
        if named:
            before += b"\x3coperationType\0\x3c" + operation_type.encode() + b"\0\x46documentKey\0\x46"
        head = _head(version, EVENT)
        self._version = version
        self._head = _hex(head)
        self._head_of_first = _hex(head + integer_key(0) + before)
        self._before_id = _hex(before)
        self._before_object_id = self._head_of_first + _hex(b"\x64_id\0\x64")
        self._end = _hex(b"\0\0\x04" if named else b"\0\x04")
        self._long_bits = self._type_bits(0x12, bytes(8), named)

    def crud(self, cluster_time: int, id_type: int, id_value: bytes, txn_op_index: int = 0) -> tuple[str, bytes | None]:
        """(token, type bits or None) of the event of the document with this raw `_id`."""
        if id_type == _OBJECT_ID and not txn_op_index:
            # Hexadecimal from bytes takes half the time of formatting the number.
            time = cluster_time.to_bytes(8, "big").hex().upper()
            return f"82{time}{self._before_object_id}{id_value.hex().upper()}{self._end}", None
        if txn_op_index:
            head = self._head + _hex(integer_key(txn_op_index)) + self._before_id
        else:
            head = self._head_of_first
        key = _ID_FIELDS[id_type] + encode_element(id_type, id_value)
        text = f"82{_hex(cluster_time.to_bytes(8, 'big'))}{head}{key.hex().upper()}{self._end}"
        if id_type not in _TYPED:
            return text, None
        if id_type == 0x12:
            return text, self._long_bits
        return text, self._type_bits(id_type, id_value, len(self._end) > 4)

    def _type_bits(self, id_type: int, id_value: bytes, named: bool) -> bytes | None:
        bits = _leading_bits(self._version)
        if named:
            bits.add_element(_STRING, b"")
        bits.add_element(id_type, id_value)
        return bits.stored()


def _hex(data: bytes) -> str:
    return data.hex().upper()


def _head(version: int, token_type: int) -> bytes:
    """The keystrings of the version and, from version 1, of the token type."""
    return integer_key(version) + (integer_key(token_type) if version else b"")


def _after_index(version: int, from_invalidate: bool, uuid: bytes | None) -> bytes:
    """The keystrings of fromInvalidate (from version 1) and of the uuid: if absent, null in version 2, otherwise
    nothing."""
    marked = (_TRUE if from_invalidate else _FALSE) if version else b""
    if uuid is None:
        return marked + (_NULL_KEY if version >= VERSION_LATEST else b"")
    return marked + _UUID + uuid


def _leading_bits(version: int) -> TypeBits:
    """The type bits of version, token type and index (version 0: version and index), which are int32."""
    bits = TypeBits()
    bits.count = 6 if version else 4
    return bits


_UUID_HEAD: Final = b"\x10\0\0\0\x04"


@dataclass(frozen=True, slots=True)
class ResumeToken:
    """A decoded token. `event_identifier` is raw BSON. It is None only in high-water marks and old drops."""

    cluster_time: int
    version: int
    token_type: int
    txn_op_index: int
    from_invalidate: bool
    uuid: bytes | None
    event_identifier: bytes | None
    fragment: int | None
    given: str
    type_bits: bytes | None

    @property
    def is_high_water_mark(self) -> bool:
        """Whether the token is a position between events instead of an event's token."""
        return self.token_type == HIGH_WATER_MARK

    @property
    def operation_type(self) -> str | None:
        """The event's operationType if the token contains it (always in version 2), otherwise None."""
        if not _is_named(self.event_identifier, self.version):
            return None
        return _name_of(self.event_identifier)

    @property
    def document_key(self) -> bytes | None:
        """The raw documentKey; None if the event has none."""
        if not _is_named(self.event_identifier, self.version):
            return self.event_identifier
        return _object_in(self.event_identifier, b"documentKey")

    def text(self, *, fragment: bool = True, version: int | None = None) -> str:
        """The token in canonical form, as Headrace makes it. Without `fragment`, the token of the unsplit event.

        For a token of version 0, `version` 1 gives the text for comparisons in a stream that answers with version 1.
        """
        return assemble(
            self.cluster_time,
            self.token_type,
            self.txn_op_index,
            self.from_invalidate,
            self.uuid,
            self.event_identifier,
            self.fragment if fragment else None,
            self.version if version is None else version,
        )

    def unsplit_event(self) -> dict[str, Any]:
        """The canonical token document of the unsplit event, if this is the token of a fragment."""
        bits = event_bits(self.event_identifier, None, self.version)
        return {"_data": self.text(fragment=False)} | ({} if bits is None else {"_typeBits": bits})

    def document(self) -> dict[str, Any]:
        """The token document as the client sent it, without fields that do not belong to a token."""
        return {"_data": self.given} | ({} if self.type_bits is None else {"_typeBits": self.type_bits})


def decode_token(document: Mapping[str, Any]) -> ResumeToken:
    """The token `{_data[, _typeBits]}`. Raises 9, 40647 to 40649 and the codes of the reference, section 2.2."""
    data = document.get("_data")
    if type(data) is not str:
        raise CommandError(
            40647,
            f"Bad resume token: _data of missing or of wrong type. Expected string, got {to_compact_string(document)}",
        )
    type_bits = document.get("_typeBits")
    if "_typeBits" in document and type(type_bits) is not bytes:
        raise CommandError(40648, f"Bad resume token: _typeBits of wrong type {to_compact_string(document)}")
    try:
        key = unhexlify(data)
    except ValueError:
        raise CommandError(9, "resume token string was not a valid hex string") from None
    values = decode_all(key, type_bits)
    if not values:
        raise CommandError(40649, "invalid empty resume token")
    return _TokenReader(values).token(data, type_bits)


class _TokenReader:
    """Reads the values of a token one by one. Raises the codes for missing and invalid values."""

    def __init__(self, values: list[tuple[int, bytes]]) -> None:
        self._values = values
        self._at = 0

    def token(self, given: str, type_bits: bytes | None) -> ResumeToken:
        cluster_time = self._cluster_time()
        version = self._int("version", 50796, 50854)
        if version not in (0, 1, 2):
            raise CommandError(50795, "Invalid Resume Token: only supports version 0, 1 and 2")
        token_type = self._token_type() if version else EVENT
        txn_op_index = self._int("txnOpIndex", 50793, 50855)
        if txn_op_index < 0:
            raise CommandError(50794, "Invalid Resume Token: txnOpIndex should be non-negative")
        from_invalidate = self._from_invalidate() if version else False
        uuid = self._uuid(version)
        identifier = self._identifier(version, token_type, uuid)
        fragment = self._fragment()
        if self._more():
            raise CommandError(40646, "invalid oversized resume token")
        if not version and uuid is None:
            token_type = HIGH_WATER_MARK  # Version 0 has no token types: its high-water marks are a bare time.
        return ResumeToken(
            cluster_time,
            version,
            token_type,
            txn_op_index,
            from_invalidate,
            uuid,
            identifier,
            fragment,
            given,
            type_bits,
        )

    def _more(self) -> bool:
        return self._at < len(self._values)

    def _next(self, name: str, missing: int) -> tuple[int, bytes]:
        if not self._more():
            raise CommandError(missing, f"Resume Token does not contain {name}")
        self._at += 1
        return self._values[self._at - 1]

    def _cluster_time(self) -> int:
        """The cluster time as MongoDB reads it: a timestamp, or a date's 64 bits. Any other value counts as time 0."""
        kind, value = self._next("clusterTime", 40649)
        return int.from_bytes(value, "little") if kind in (_TIMESTAMP, _DATE) else 0

    def _int(self, name: str, missing: int, wrong_type: int) -> int:
        kind, value = self._next(name, missing)
        if kind != _INT:
            raise CommandError(wrong_type, f"Invalid resume token: wrong type for {name}")
        return int.from_bytes(value, "little", signed=True)

    def _token_type(self) -> int:
        token_type = self._int("tokenType", 51055, 51056)
        if token_type not in (HIGH_WATER_MARK, EVENT):
            raise CommandError(51057, f"Invalid resume token: unknown tokenType {token_type}")
        return token_type

    def _from_invalidate(self) -> bool:
        kind, value = self._next("fromInvalidate", 50872)
        if kind != _BOOL:
            raise CommandError(50870, "Resume Token fromInvalidate is not a boolean.")
        return value != b"\0"

    def _uuid(self, version: int) -> bytes | None:
        if version < VERSION_LATEST and not self._more():
            return None
        kind, value = self._next("a UUID, or null", 6189500)
        if kind == _NULL and version == VERSION_LATEST:
            return None
        if kind != _BINARY or value[:5] != _UUID_HEAD:
            raise CommandError(6189501, "Resume Token does not contain a valid UUID")
        return value[5:]

    def _identifier(self, version: int, token_type: int, uuid: bytes | None) -> bytes | None:
        if not self._more():
            if version == VERSION_LATEST and token_type == EVENT:
                raise CommandError(6189502, "Resume Token of an event does not contain an eventIdentifier")
            return None
        if token_type == HIGH_WATER_MARK:
            raise CommandError(6189505, "Resume Token of a high water mark contains an eventIdentifier")
        kind, identifier = self._next("eventIdentifier", 6189502)
        if kind != _OBJECT:
            raise CommandError(6189503, "Resume Token eventIdentifier is not an object")
        if version == VERSION_LATEST and _name_of(identifier) is None:
            raise CommandError(6189504, "Resume Token eventIdentifier does not contain an operationType")
        return identifier

    def _fragment(self) -> int | None:
        if not self._more():
            return None
        kind, value = self._next("fragmentNum", 7182501)
        fragment = int.from_bytes(value, "little", signed=True) if kind == _INT else -1
        if fragment < 0:
            raise CommandError(7182501, "Resume token 'fragmentNum' must be a non-negative integer.")
        return fragment


def _is_named(identifier: bytes | None, version: int) -> bool:
    """Whether the identifier begins with an operationType. Otherwise it is the documentKey itself."""
    if identifier is None:
        return False
    first = first_element(identifier)
    return version == VERSION_LATEST or (first is not None and first[:2] == (_STRING, b"operationType"))


def _name_of(identifier: bytes | None) -> str | None:
    element = None if identifier is None else find_element(identifier, b"operationType")
    if identifier is None or element is None or element[0] != _STRING:
        return None
    return identifier[element[1] + 4 : element[2] - 1].decode(errors="replace")


def _object_in(identifier: bytes | None, name: bytes) -> bytes | None:
    element = None if identifier is None else find_element(identifier, name)
    if identifier is None or element is None or element[0] != _OBJECT:
        return None
    return identifier[element[1] : element[2]]
