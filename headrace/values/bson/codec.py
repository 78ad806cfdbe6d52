"""BSON bytes to Python values and back, preserving the types of all values.

Rule: inside Headrace a value has exactly one of these Python types, wherever it comes from:

    double float · string str · object dict · array list · binary Binary (subtype 0 is bytes)
    objectId ObjectId · bool bool · date DatetimeMS · null None · regex Regex · int int (fits 32 bits)
    timestamp Timestamp · long Int64 · decimal Decimal128 · minKey MinKey · maxKey MaxKey
    javascript Code · an absent field MISSING (never stored)

A plain `int` is a 32-bit integer; a 64-bit one is an `Int64`, also when it is small. A plain `int`
that does not fit 32 bits is encoded as 64 bits by the codec, but code that computes must wrap it.
Not distinguished, because the codec cannot: undefined decodes to None, symbol to str.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

import bson
from bson import DBRef
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion

from headrace import limits
from headrace.errors import CommandError
from headrace.values.bson.alike import ALIKE_COUNT_MIN, are_alike

OPTIONS: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    document_class=dict,
    tz_aware=False,
    uuid_representation=UuidRepresentation.UNSPECIFIED,
    datetime_conversion=DatetimeConversion.DATETIME_MS,
)

_to_dict: Final = bson._bson_to_dict  # type: ignore[attr-defined]  # the C decoder, less a call


def decode(data: bytes | memoryview) -> dict[str, Any]:
    """One BSON document as a dict of the types named above. Raises `bson.InvalidBSON` if it is malformed."""
    document = _to_dict(data, OPTIONS)
    if type(data) is not bytes:
        data = bytes(data)
    return _without_dbrefs(document) if b"$ref\0" in data else document


def decode_many(documents: Sequence[bytes]) -> list[dict[str, Any]]:
    """As `decode` for each, in two thirds of the time."""
    if len(documents) == 1:
        return [decode(documents[0])]
    data = b"".join(documents)
    return list(map(decode, documents)) if b"$ref\0" in data else bson.decode_all(data, OPTIONS)


def value_of(bson_type: int, data: bytes, start: int, end: int) -> Any:
    """The value of one element, whose bytes are `data[start:end]`."""
    head = (end - start + 8).to_bytes(4, "little") + bytes((bson_type,)) + b"v\0"
    return decode(head + data[start:end] + b"\0")["v"]


def check_all(documents: Sequence[bytes]) -> None:
    """Check that each document decodes, at every level. Raises `bson.InvalidBSON`, or 15 for a document nested too
    deeply.

    The documents are decoded in batches. A batch takes a third of the time of one by one, and bounded memory. Many
    documents like the first are not decoded: see `alike.py`.
    """
    if len(documents) == 1 and len(documents[0]) < _DEEP_BYTES:
        _to_dict(documents[0], OPTIONS)
        return
    if len(documents) >= ALIKE_COUNT_MIN:
        check_all(documents[:1])
        if are_alike(documents):
            return
    longest = max(map(len, documents), default=1)
    count = _CHECKED_BYTES // longest or 1
    for start in range(0, len(documents), count):
        some = documents[start : start + count]
        decoded = bson.decode_all(b"".join(some), OPTIONS)
        if longest >= _DEEP_BYTES:
            for data, document in zip(some, decoded):
                if len(data) >= _DEEP_BYTES:
                    _check_depth(document)


def _check_depth(document: Mapping[str, Any]) -> None:
    if _nests_deeper(document, limits.NESTING_MAX):
        raise CommandError(15, f"cannot insert document because it exceeds {limits.NESTING_MAX} levels of nesting")


def _nests_deeper(document: Mapping[str, Any], levels: int) -> bool:
    level: list[Any] = [document]
    for _ in range(levels):
        values = chain.from_iterable(item.values() if isinstance(item, dict) else item for item in level)
        level = [value for value in values if isinstance(value, dict | list)]
        if not level:
            return False
    return True


_CHECKED_BYTES: Final = 64 * 1024
# A level takes at least 7 bytes: type, the end of its name, length, end.
_DEEP_BYTES: Final = 7 * limits.NESTING_MAX


def encode(document: Mapping[str, Any]) -> bytes:
    """The document as BSON bytes, with `_id` first. A `MISSING` in the document is a bug: `bson.InvalidDocument`."""
    return bson._dict_to_bson(document, False, OPTIONS)  # type: ignore[attr-defined]  # the C encoder, less two calls


def encode_in_order(document: Mapping[str, Any]) -> bytes:
    """The document as BSON bytes, with all fields in their order: `encode` moves `_id` to the front."""
    return bson._dict_to_bson(document, False, OPTIONS, False)  # type: ignore[attr-defined]


def _without_dbrefs(value: Any) -> Any:
    """Turn DBRefs back into documents: the codec makes DBRef objects of {$ref, $id} documents."""
    if isinstance(value, DBRef):
        return {key: _without_dbrefs(item) for key, item in value.as_doc().items()}
    if isinstance(value, dict):
        return {key: _without_dbrefs(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_dbrefs(item) for item in value]
    return value
