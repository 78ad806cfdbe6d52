"""The keys of many documents at once, for builds. Their fields are read as columns, or all are decoded in one call.

Rule: a value that is not plain (an array, an object, a value of a rare type, a key that is too long) yields None here.
The caller then uses `KeyMaker.keys`, which makes the same keys for plain values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from headrace import limits
from headrace.store.indexes.field_keys import Encoders
from headrace.store.indexes.index_keys import INVERTED, KeyMaker, PlainField
from headrace.values.bson import MISSING
from headrace.values.bson.codec import decode_many
from headrace.values.keystring.encoding import END

NO_KEY: Final = b""
"""Replaces the key of a document that is not in the index."""
_UNCUT_MAX: Final = limits.KEY_BYTES_MAX - 4
_BYTES_EACH: Final = 512
"""The maximum size of a document, in bytes per field of the index. In a longer one a search for the fields is
quicker."""
_BYTES_MAX: Final = 512 * 1024


def plain_keys(maker: KeyMaker, documents: Sequence[bytes]) -> list[bytes | None]:
    """Return for each raw document its only key, `NO_KEY`, or None if `KeyMaker.keys` must be called. Does not
    pause."""
    prefix, fields, sparse, covers = maker.prefix, maker.plain_fields, maker.is_sparse, maker.covers
    size, size_max = sum(map(len, documents)), min(_BYTES_MAX, len(documents) * _BYTES_EACH * len(fields))
    if not size or size > size_max:
        return [None] * len(documents)
    decoded: list[dict[str, Any]]
    if covers is None:
        columns, field = maker.columns.values(documents), fields[0]
        if len(fields) == 1 and len(field.path) == 1 and not (field.descending or sparse):
            return _keys_of_one_name(prefix, field.encoders, columns[field.path[0]])
        decoded = [dict(zip(columns, row)) for row in zip(*columns.values())]
    else:
        decoded = decode_many(documents)
    return [
        NO_KEY if covers is not None and not covers(document) else _key(prefix, fields, document, sparse=sparse)
        for document in decoded
    ]  # fmt: skip


def _keys_of_one_name(prefix: bytes, encoders: Encoders, values: Sequence[Any]) -> list[bytes | None]:
    keys: list[bytes | None] = []
    encoder_of = encoders.get
    for value in values:
        encoder = encoder_of(type(value))
        if encoder is None:
            keys.append(None)
            continue
        key = prefix + encoder(value) + END
        keys.append(key if len(key) <= _UNCUT_MAX else None)
    return keys


def _key(prefix: bytes, fields: Sequence[PlainField], document: dict[str, Any], *, sparse: bool) -> bytes | None:
    key = prefix
    for path, down, encoders in fields:
        value: Any = document
        for name in path:
            if type(value) is not dict:
                if type(value) is list:
                    return None
                value = MISSING
                break
            value = value.get(name, MISSING)
        encoder = encoders.get(type(value))
        if encoder is None:
            return None
        if value is not MISSING:
            sparse = False
        piece = encoder(value)
        key += piece.translate(INVERTED) if down else piece
    if sparse:
        return NO_KEY
    return key + END if len(key) < _UNCUT_MAX else None
