"""Makes resume tokens: the text is byte for byte what MongoDB would make.

Rule: tokens sort as text in the order of events; a high-water mark sorts before every event of its time.

    clusterTime | version | tokenType | txnOpIndex | fromInvalidate | uuid | eventIdentifier | fragmentNum | 04

as keystrings in upper-case hexadecimal. Omitted, by version:

    version 0   no tokenType, no fromInvalidate; no uuid if there is none; the identifier is the documentKey
    version 1   no uuid if there is none; the identifier of classic events is the documentKey (or nothing)
    version 2   uuid null if there is none; the identifier is {operationType, documentKey | operationDescription}

High-water marks have no identifier, and only fragments of split events have a fragmentNum. Source: the project's
reference, section 2.6.
"""

from __future__ import annotations

from typing import Final

from headrace.values.keystring import END, GENERAL_TYPES, TypeBits, encode_element, encode_fields
from headrace.values.keystring.number_encoding import integer_key

VERSION_LATEST: Final = 2
HIGH_WATER_MARK: Final = 0
EVENT: Final = 128

_STRING, _OBJECT, _OBJECT_ID, _INT = 0x02, 0x03, 0x07, 0x10
_FALSE, _TRUE, _NULL, _UUID = b"\x6e", b"\x6f", b"\x14", b"\x5a\x10\x04"

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
        return marked + (_NULL if version >= VERSION_LATEST else b"")
    return marked + _UUID + uuid


def _leading_bits(version: int) -> TypeBits:
    """The type bits of version, token type and index (version 0: version and index), which are int32."""
    bits = TypeBits()
    bits.count = 6 if version else 4
    return bits
