"""BSON that Extended JSON in tables cannot hold, and the mark that replaces such a document.

Rule: a document is held if its decoded value encodes to the same bytes and its numbers have one text each. The reasons
why a document is not held: duplicate field names, symbol, dbPointer, undefined, an array whose names are not 0, 1, 2
..., unknown or unsorted options of a regular expression, a NaN with a payload or a sign, a Decimal128 that is not
canonical.

    {"$notHeld": "<reason>"}   replaces the document in its column; the reason names fields, but no values
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from struct import Struct
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from bson import InvalidBSON

from headrace.values.bson import decode, encode, encode_in_order, iter_elements

NOT_HELD: Final = "$notHeld"
_MARK: Final = f'{{"{NOT_HELD}":'
_BSON_MARK: Final = f"\x02{NOT_HELD}\0".encode()
MARKED: Final = ("fullDocument", "fullDocumentBeforeChange", "updateDescription")
"""The columns that may have marks in a sink with dead letters."""
_NAMING: Final = ("collection", "database", "documentKey", "token")
_EVENT_DOCUMENTS: Final = frozenset(
    {"fullDocument", "fullDocumentBeforeChange", "rawUpdateDescription", "updateDescription"}
)
_DOCUMENT, _ARRAY, _SCOPED = 0x03, 0x04, 0x0F
_DOUBLE, _REGEX, _DECIMAL = 0x01, 0x0B, 0x13
_DEPRECATED: Final = {0x06: "undefined", 0x0C: "a dbPointer", 0x0E: "a symbol"}
_NAN: Final = b"\0\0\0\0\0\0\xf8\x7f"
_HALVES: Final = Struct("<QQ").unpack
_SPECIALS: Final = frozenset({0x7C00_0000_0000_0000, 0x7800_0000_0000_0000, 0xF800_0000_0000_0000})
_DIGITS_MAX: Final = 10**34 - 1
_ODD: Final = b"".join(b"\\x%02x" % octet for octet in range(1, 256, 2))
_SUSPECT: Final = re.compile(
    rb"\x01[^\0]*+\0.{6}[\xf0-\xff][\x7f\xff]|\x13[^\0]*+\0.{14}(?:[%b]|.[\x60-\x7f\xe0-\xff])" % _ODD, re.DOTALL
).search
"""Finds each double and Decimal128 that may not be held: a NaN, an infinity, nearly 34 digits. May find others."""


class NotHeld(RuntimeError):
    """A row has BSON that a table cannot hold. The message names the collection, the `_id` and the reason."""


class NotHeldTogether(InvalidBSON):
    """Some of the documents that were converted together are not held: each must be checked alone."""


def reason_not_held(data: bytes, document: dict[str, Any]) -> str | None:
    """Return why tables cannot hold the document, given its bytes and its decoded value; None if they can."""
    if encode_in_order(document) == data:
        if not _SUSPECT(data):
            return None
        return next(_reasons(data, 0, ""), None)
    return next(_reasons(data, 0, ""), "its bytes are not those that its values have")


def is_held_number(kind: int, value: bytes) -> bool:
    """Whether the bytes of a double or a Decimal128 equal those that its text decodes to."""
    if kind == _DOUBLE:
        return not (value[7] & 0x7F == 0x7F and value[6] >= 0xF0) or _is_usual(value)
    low, high = _HALVES(value)
    if high >> 61 & 3 != 3:
        return bool(((high & (1 << 49) - 1) << 64 | low) <= _DIGITS_MAX)
    return low == 0 and high in _SPECIALS


def _is_usual(value: bytes) -> bool:
    return value == _NAN or (value[:6] == bytes(6) and value[6] == 0xF0)


def _reasons(data: bytes, start: int, path: str, *, array: bool = False) -> Iterator[str]:
    names: set[bytes] = set()
    for number, (kind, raw, value, end) in enumerate(iter_elements(data, start)):
        name = f"{path}{raw.decode(errors='replace')}"
        if array and raw != b"%d" % number:
            yield f"{path[:-1]} is an array whose names are not 0, 1, 2 ..."
        if raw in names:
            yield f"the field {name} is there twice"
        names.add(raw)
        if kind in _DEPRECATED:
            yield f"{name} is {_DEPRECATED[kind]}"
        elif kind in (_DOCUMENT, _ARRAY):
            yield from _reasons(data, value, f"{name}.", array=kind == _ARRAY)
        elif kind == _SCOPED:
            code_bytes = int.from_bytes(data[value + 4 : value + 8], "little")
            yield from _reasons(data, value + 8 + code_bytes, f"{name}.")
        elif kind in (_DOUBLE, _DECIMAL) and not is_held_number(kind, data[value:end]):
            yield f"{name} is a {'NaN with a payload or a sign' if kind == _DOUBLE else 'Decimal128 of another form'}"
        elif kind == _REGEX:
            options = data[value:end].split(b"\0")[1]
            if bytes(sorted(set(options) & set(b"ilmsux"))) != options:
                yield f"{name} is a regular expression with options that are unknown, or not sorted"


def check_held(kind: int, values: Sequence[bytes], items: bytes) -> None:
    """Raise NotHeldTogether if a value of this type cannot be held; the values decoded to the bytes `items`."""
    if kind == _DECIMAL:
        held = all(is_held_number(kind, value) for value in values)
    else:
        held = not _SUSPECT(items) or next(_reasons(items, 0, ""), None) is None
    if not held:
        raise NotHeldTogether


def held_or_marked(data: bytes) -> dict[str, Any]:
    """Return the decoded document, or a mark with the reason if it is not held."""
    document = decode(data)
    reason = reason_not_held(data, document)
    return document if reason is None else {NOT_HELD: reason}


def reason_of(text: str | None) -> str | None:
    """Return the reason if the text is a mark, otherwise None."""
    return str(json.loads(text)[NOT_HELD]) if text is not None and text.startswith(_MARK) else None


def marked_rows(batch: pa.RecordBatch | pa.Table, names: Collection[str] | None = None) -> dict[int, str]:
    """Return the rows with a mark in one of these columns (None: any), by number, with the column and the reason."""
    found: dict[int, str] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        marks = _marks(column) if names is None or name in names else None
        if marks is not None and pc.any(marks).as_py():
            for number in pc.indices_nonzero(pc.fill_null(marks, fill_value=False)).to_pylist():
                cell = column[number].as_py()
                reason = decode(cell)[NOT_HELD] if isinstance(cell, bytes) else reason_of(cell)
                found.setdefault(number, f"{name}: {reason}")
    return found


def _marks(column: pa.Array) -> pa.Array | None:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return pc.starts_with(column, _MARK)
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return pc.equal(pc.binary_slice(column, 4, 4 + len(_BSON_MARK)), pa.scalar(_BSON_MARK, column.type))
    return None


def refuse_marked(
    batch: pa.RecordBatch, database: str | None, collection: str | None, names: Collection[str] | None = None
) -> None:
    """Raise NotHeld for the first row that `marked_rows` finds.

    The message names the collection in the row's columns, or else the given one.
    """
    for number, reason in marked_rows(batch, names).items():
        row = {name: batch.column(name)[number].as_py() for name in _NAMING if name in batch.schema.names}
        place = f"{row.get('database') or database}.{row.get('collection') or collection}"
        key = row.get("documentKey")
        key = decode(key) if isinstance(key, bytes) else key
        document = f"the event {row.get('token')}" if key is None else f"the document {key}"
        raise NotHeld(
            f"{place}: {document} has BSON that a table would change: {reason}. Correct it in the collection, or see "
            "docs/spark/bson.md for what to do"
        )


def refuse_not_held(batch: pa.RecordBatch) -> None:
    """Raise NotHeld for the first row of a batch of BSON columns with a document that is not held."""
    marked = {
        name: pa.array([None if data is None else _marked(data) for data in column.to_pylist()], column.type)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if pa.types.is_binary(column.type)
    }
    arrays = [marked.get(name, column) for name, column in zip(batch.schema.names, batch.columns, strict=True)]
    refuse_marked(pa.RecordBatch.from_arrays(arrays, schema=batch.schema), None, None)


def _marked(data: bytes) -> bytes:
    document = held_or_marked(data)
    return encode(document) if NOT_HELD in document else data


def held_event(data: bytes) -> dict[str, Any]:
    """Return the decoded change event, with marks for its documents that are not held."""
    event = decode(data)
    if reason_not_held(data, event) is not None:
        for kind, raw, start, end in iter_elements(data):
            if kind == _DOCUMENT and (name := raw.decode()) in _EVENT_DOCUMENTS:
                event[name] = held_or_marked(data[start:end])
    return event
