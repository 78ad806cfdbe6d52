"""Oplog entries as BSON bytes, shaped and ordered as MongoDB writes them.

    [lsid, txnNumber,] op, ns, [ui,] o, [o2,] [stmtId,] ts, t, v, wall[, prevOpTime]

A CRUD entry is joined from slices: the document's bytes go from the socket into the entry unchanged. The bytes before
`o` are fixed for a collection and made once (`crud_head`). The bytes after `o2` are fixed but for two numbers (`tail`).
`changes/` relies on both to find the parts without parsing.

Source: MongoDB's oplog as drivers' suites and published samples show it; the order is the IDL's.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from struct import Struct
from typing import Any, Final

from headrace.values.bson import encode
from headrace.values.rows import EqualRows, as_rows

_INT32 = Struct("<i").pack
_INT64 = Struct("<q").pack
_UINT64 = Struct("<Q").pack

TERM: Final = 1
_BEFORE_TS: Final = b"\x11ts\x00"
_BEFORE_WALL: Final = b"\x12t\x00" + _INT64(TERM) + b"\x12v\x00" + _INT64(2) + b"\x09wall\x00"
TAIL_BYTES: Final = len(_BEFORE_TS) + 8 + len(_BEFORE_WALL) + 8 + 1
_O: Final = b"\x03o\x00"
_O2: Final = b"\x03o2\x00"
_PLAIN_BYTES: Final = 4 + len(_O) + TAIL_BYTES
_STMT: Final = b"\x10stmtId\x00"
_NO_TERM: Final = -1
_BEFORE_PREVIOUS: Final = b"\x03prevOpTime\0" + _INT32(28) + _BEFORE_TS
_NO_PREVIOUS: Final = b"".join((_BEFORE_PREVIOUS, bytes(8), b"\x12t\x00", _INT64(_NO_TERM), b"\0"))
_PREVIOUS_END: Final = b"\x12t\x00" + _INT64(TERM) + b"\0"
PREVIOUS_BYTES: Final = len(_NO_PREVIOUS)
_RETRIED_BYTES: Final = _PLAIN_BYTES + len(_STMT) + 4 + PREVIOUS_BYTES
_ROW_COUNT_MIN: Final = 16
"""The number of entries of one length from which on they are packed as rows."""
ARRAY_ELEMENT_BYTES_MAX: Final = 12  # an array's overhead per document: type, index, zero


def string_element(name: bytes, value: str) -> bytes:
    """Return one BSON string element. `name` ends without its zero."""
    text = value.encode()
    return b"\x02" + name + b"\x00" + _INT32(len(text) + 1) + text + b"\x00"


def uuid_element(name: bytes, uuid: bytes) -> bytes:
    """Return one BSON UUID element. `uuid` is 16 bytes, `name` ends without its zero."""
    return b"\x05" + name + b"\x00" + _INT32(16) + b"\x04" + uuid


def crud_head(operation: str, namespace: str, uuid: bytes | None) -> bytes:
    """Return the fields in front of `o`: `op`, `ns` and, for a collection's own entries, `ui`."""
    head = string_element(b"op", operation) + string_element(b"ns", namespace)
    return head + uuid_element(b"ui", uuid) if uuid is not None else head


def session_head(lsid: bytes, txn_number: int) -> bytes:
    """Return the first fields of a retryable write's entry: `lsid` (a raw document) and `txnNumber`."""
    return b"\x03lsid\x00" + lsid + b"\x12txnNumber\x00" + _INT64(txn_number)


def tail(position: int, wall_ms: int) -> bytes:
    """Return `ts`, `t`, `v`, `wall` and the document's end, for an entry at `position`."""
    return _BEFORE_TS + _UINT64(position) + _BEFORE_WALL + _INT64(wall_ms) + b"\x00"


def entry(head: bytes, o: bytes, o2: bytes | None, end: bytes) -> bytes:
    """Return one entry. `head`: from `crud_head`; `o`, `o2`: raw documents; `end`: from `tail`."""
    body = b"".join((head, _O, o, end) if o2 is None else (head, _O, o, _O2, o2, end))
    return _INT32(len(body) + 4) + body


def retried_entry(
    session: bytes, head: bytes, o: bytes, o2: bytes | None, position: int, wall_end: bytes, retried: tuple[int, int]
) -> bytes:
    """Return one entry of a retryable write. `session`: from `session_head`; `wall_end`: from `end`.

    `retried`: (`stmtId`, the position of the same write's previous entry, or 0 if there is none).
    """
    second = b"" if o2 is None else _O2 + o2
    statement, previous = retried
    size = _INT32(len(session) + len(head) + len(o) + len(second) + _RETRIED_BYTES)
    pieces = (
        size, session, head, _O, o, second, _STMT, _INT32(statement), _BEFORE_TS, _UINT64(position), wall_end[:-1],
        previous_element(previous), b"\0",
    )  # fmt: skip
    return b"".join(pieces)


def end(wall_ms: int) -> bytes:
    """Return the end of `tail`, after the position."""
    return _BEFORE_WALL + _INT64(wall_ms) + b"\x00"


def plain_entry(head: bytes, o: bytes, o2: bytes | None, position: int, wall_end: bytes) -> bytes:
    """Return an entry of a write that is not retryable, as `entry` does. `wall_end`: from `end`."""
    if o2 is None:
        size = _INT32(len(head) + len(o) + _PLAIN_BYTES)
        return b"".join((size, head, _O, o, _BEFORE_TS, _UINT64(position), wall_end))
    size = _INT32(len(head) + len(o) + len(o2) + _PLAIN_BYTES + len(_O2))
    return b"".join((size, head, _O, o, _O2, o2, _BEFORE_TS, _UINT64(position), wall_end))


def insert_entries(
    head: bytes, documents: list[bytes], keys: list[bytes], first: int, wall_ms: int, retried: tuple[int, int] | None
) -> list[bytes]:
    """Return the entries of one `insert` at positions `first`, `first + 1`, ... `keys`: the raw `{_id}` documents.

    `retried` is for the first entry, as in `retried_entry`; it determines the values of the other entries.
    """
    if len(documents) >= _ROW_COUNT_MIN and (rows := as_rows(documents)) and (key_rows := as_rows(keys)):
        return _entries_of_one_length(head, rows, key_rows, first, wall_ms, retried)
    wall_end, positions = end(wall_ms), range(first, first + len(documents))
    if retried is None:
        return [plain_entry(head, document, key, at, wall_end) for document, key, at in zip(documents, keys, positions)]
    made = []
    statement, previous = retried
    for document, key, at in zip(documents, keys, positions):
        made.append(retried_entry(b"", head, document, key, at, wall_end, (statement + at - first, previous)))
        previous = at
    return made


def _entries_of_one_length(
    head: bytes, documents: EqualRows, keys: EqualRows, first: int, wall_ms: int, retried: tuple[int, int] | None
) -> EqualRows:
    """Return the entries as `insert_entries` does, packed in half the time: each has the same length."""
    end = _BEFORE_WALL + _INT64(wall_ms)
    sizes = len(head) + documents.row_bytes + keys.row_bytes + len(_O2)
    if retried is None:
        start, positions = _INT32(sizes + _PLAIN_BYTES) + head + _O, range(first, first + len(documents))
        return _rows(start, documents, _O2, keys, _BEFORE_TS, ("Q", positions), end + b"\0")
    start, statement, last = _INT32(sizes + _RETRIED_BYTES) + head + _O, retried[0], first + len(documents) - 1
    rest = _rows(
        start, documents[1:], _O2, keys[1:], _STMT, ("i", range(statement + 1, statement + len(documents))),
        _BEFORE_TS, ("Q", range(first + 1, last + 1)), end + _BEFORE_PREVIOUS, ("Q", range(first, last)),
        _PREVIOUS_END + b"\0",
    )  # fmt: skip
    return EqualRows(insert_entries(head, documents[:1], keys[:1], first, wall_ms, retried) + rest, rest.row_bytes)


def _rows(*columns: bytes | list[bytes] | tuple[str, range]) -> EqualRows:
    """Join columns to rows. A column is a constant, values of one length, or (format of `struct`, integers)."""
    formats, values = ["<"], list[Iterable[Any]]()
    for column in columns:
        if isinstance(column, tuple):
            formats.append(column[0])
            values.append(column[1])
        else:
            formats.append(f"{len(column if isinstance(column, bytes) else column[0])}s")
            values.append(repeat(column) if isinstance(column, bytes) else column)
    row = Struct("".join(formats))
    return EqualRows(map(row.pack, *values), row.size)


def previous_element(previous: int) -> bytes:
    """Return `prevOpTime`: the position of the session's previous entry with this number. 0 (the first entry) has no
    term."""
    if not previous:
        return _NO_PREVIOUS
    return b"".join((_BEFORE_PREVIOUS, _UINT64(previous), _PREVIOUS_END))


def noop_entry(message: str, position: int, wall_ms: int) -> bytes:
    """Return a `n` entry, which records no change, at `position`."""
    return entry(crud_head("n", "", None), encode({"msg": message}), None, tail(position, wall_ms))


def command_entry(
    database: str, uuid: bytes | None, o: dict[str, Any], o2: dict[str, Any] | None, position: int, wall_ms: int
) -> bytes:
    """Return a `c` entry on `<database>.$cmd`."""
    head = crud_head("c", f"{database}.$cmd", uuid)
    return entry(head, encode(o), None if o2 is None else encode(o2), tail(position, wall_ms))


def operation(head: bytes, o: bytes, o2: bytes | None) -> bytes:
    """Return one operation as an element of `applyOps`. `head`: from `crud_head`; the rest are raw documents."""
    return _document(head, _O, o) if o2 is None else _document(head, _O, o, _O2, o2)


def transaction_entry(
    session: bytes, operations: list[bytes], position: int, wall_ms: int, *, previous: int, partial: bool,
    count: int | None,
) -> bytes:  # fmt: skip
    """Return the entry of a transaction, or one entry of its chain.

    `session`: from `session_head`. `previous`: the position of the chain's previous entry, or 0. All entries but the
    last are `partial`. The last entry of a longer chain has the `count` of all operations.
    """
    items = b"".join([b"\x03%d\x00%b" % item for item in enumerate(operations)])
    body = [b"\x04applyOps\x00", _document(items)]
    if partial:
        body.append(b"\x08partialTxn\x00\x01")
    if count is not None:
        body.append(b"\x12count\x00" + _INT64(count))
    return _document(
        session, crud_head("c", "admin.$cmd", None), _O, _document(*body), tail(position, wall_ms)[:-1],
        previous_element(previous),
    )  # fmt: skip


def _document(*pieces: bytes) -> bytes:
    body = b"".join(pieces)
    return _INT32(len(body) + 5) + body + b"\x00"
