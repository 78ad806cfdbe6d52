"""The `_id` of a raw document: find, check, move to the front or generate it, without decoding other fields.

Source of the rules: MongoDB stores `_id` first, generates an ObjectId if the client sent no `_id`, and refuses arrays,
regular expressions and undefined (error 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from struct import Struct
from typing import Final

from bson import ObjectId

from headrace import limits
from headrace.errors import CommandError
from headrace.values.bson import find_element, iter_elements, value_size
from headrace.values.keystring.encoding import encode_element
from headrace.values.position import to_bson_value
from headrace.values.rows import EqualRows, as_rows, longest

_INT32 = Struct("<i")
_REFUSED: Final = {0x04: "an array", 0x0B: "a regex", 0x06: "an undefined"}
_ID_NAME: Final = b"_id\x00"
_SIZES: Final = {0x10: 4, 0x12: 8}
_OBJECT_ID: Final = b"\x07_id\x00"
_BEFORE_ID: Final = b"\x16\x00\x00\x00" + _OBJECT_ID
_PACK_ID = Struct("9s12sx").pack
"""Packs `_BEFORE_ID` and an ObjectId as a raw `{_id}` document of 22 bytes."""
_JOINED_BYTES_MAX: Final = 4096
"""The size of documents up to which all are joined, instead of the beginning of each."""
_ZERO_TIMESTAMP: Final = bytes(8)


def identified(document: bytes) -> tuple[bytes, bytes, bytes]:
    """Apply `with_id_first` and `identify`: return (the document, its `_id`'s key, the raw `{_id}` document).

    For a document that begins with an ObjectId or an integer, the usual case, the length is not compared with the
    bytes. The code that cut the document from a message has already used the length.
    """
    if document[4:9] == _OBJECT_ID and len(document) <= limits.DOCUMENT_BYTES_MAX:
        value = document[9:21]
        return document, b"\x64" + value, b"\x16\x00\x00\x00\x07_id\x00" + value + b"\x00"
    size = _SIZES.get(document[4])
    if size is not None and document[5:9] == _ID_NAME and len(document) <= limits.DOCUMENT_BYTES_MAX:
        end = 9 + size
        key = encode_element(document[4], document[9:end])
        return document, key, _INT32.pack(size + 10) + document[4:end] + b"\x00"
    document = with_id_first(document)
    return (document, *identify(document))


def identified_many(documents: Sequence[bytes], prefix: bytes) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Apply `identified` to each document; return a list of each result. `prefix`: put in front of the keys."""
    rows = as_rows(documents)
    if rows is not None and rows.row_bytes <= _JOINED_BYTES_MAX:
        joined, at, size = b"".join(rows), 4, rows.row_bytes
    else:
        joined, at, size = b"".join([document[4:21] for document in documents]), 0, 17
    is_short = longest(documents if rows is None else rows) <= limits.DOCUMENT_BYTES_MAX
    if is_short and _are_object_ids(joined, at, size, len(documents)):
        values = [value for (value,) in Struct(f"{at + 5}x12s{size - at - 17}x").iter_unpack(joined)]
        start = prefix + b"\x64"
        keys = EqualRows(map(Struct(f"{len(start)}s12s").pack, repeat(start), values), len(start) + 12)
        return rows or list(documents), keys, EqualRows(map(_PACK_ID, repeat(_BEFORE_ID), values), 22)
    ready, keys_only, key_documents = map(list, zip(*map(identified, documents)))
    return ready, [prefix + key for key in keys_only], key_documents


def _are_object_ids(joined: bytes, at: int, size: int, count: int) -> bool:
    """Return whether `joined` has `count` rows of `size` bytes, each with an ObjectId `_id` of 17 bytes at `at`. Looks
    at one byte of all rows at a time."""
    return (
        len(joined) == size * count
        and size >= at + 17
        and all(joined[at + place :: size] == bytes((byte,)) * count for place, byte in enumerate(_OBJECT_ID))
    )


def identify(document: bytes) -> tuple[bytes, bytes]:
    """Return (key of `_id` in the ids table, raw `{_id}` document) for a document whose first element is `_id`."""
    kind = document[4]
    if kind == 0x07:
        value = document[9:21]
        return b"\x64" + value, b"\x16\x00\x00\x00\x07_id\x00" + value + b"\x00"
    key = key_document(document)
    return encode_element(kind, key[9:-1]), key


def key_document(document: bytes) -> bytes:
    """Return the raw `{_id}` document of a document whose first element is `_id`."""
    size = value_size(document[4], document, 9)
    return b"".join((_INT32.pack(size + 10), document[4 : 9 + size], b"\x00"))


def with_id_first(document: bytes) -> bytes:
    """Return the document with its `_id` as first element, generated if missing. Raises 2, 22, 52, 10334. May tick,
    unless the first element is `_id` already."""
    size = len(document)
    if size > limits.DOCUMENT_BYTES_MAX:
        raise CommandError(
            10334, f"object to insert too large. size in bytes: {size}, max size: {limits.DOCUMENT_BYTES_MAX}"
        )
    if size < 5 or _INT32.unpack_from(document)[0] != size or document[-1] != 0:
        raise CommandError(22, "invalid bson: the length of a document does not match its bytes")
    if document[5:9] != _ID_NAME:
        document = _moved_or_made(document)
    kind = document[4]
    if kind == 0x07:
        return document
    if kind in _REFUSED:
        raise CommandError(2, f"can't use {_REFUSED[kind]} for _id")
    if kind == 0x03:
        _check_id_object(document)
    return document


def _check_id_object(document: bytes) -> None:
    """Raise 52 if an `_id` that is a document begins with an operator."""
    if document[13] != 0 and document[14:15] == b"$":
        end = document.index(b"\x00", 14)
        name = document[14:end].decode(errors="replace")
        if name not in ("$ref", "$id", "$db"):
            raise CommandError(52, f"_id fields may not contain '$'-prefixed fields: {name} is not valid for storage.")


def _moved_or_made(document: bytes) -> bytes:
    field = find_element(document, b"_id")
    view = memoryview(document)
    if field is None:
        new = b"\x07_id\x00" + ObjectId().binary
        return b"".join((_INT32.pack(len(document) + len(new)), new, view[4:]))
    kind, start, end = field
    name_start = start - 5
    element = bytes((kind,)) + _ID_NAME + document[start:end]
    return b"".join((view[:4], element, view[4:name_start], view[end:]))


def with_timestamps(document: bytes, position: int) -> bytes:
    """Return the document with every empty top-level Timestamp set to `position`, as MongoDB does at an insert."""
    if 0x11 not in document or _ZERO_TIMESTAMP not in document:
        return document
    changed = None
    for kind, name, start, end in iter_elements(document):
        if kind == 0x11 and name != b"_id" and document[start:end] == _ZERO_TIMESTAMP:
            changed = changed or bytearray(document)
            changed[start:end] = to_bson_value(position)
    return document if changed is None else bytes(changed)
