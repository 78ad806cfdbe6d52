"""Takes a change event apart into columns without decoding it: the rows that the Spark source reads.

Rule: no part of an event is dropped. Each field has its column, documents as their BSON bytes. The column `other` is a
BSON document of the remaining fields: those without a column, and those with a value that their column cannot hold (a
pipeline may reshape events).

    token, clusterTime, clusterTimeIncrement, operationType, database, collection, documentKey, fullDocument,
    fullDocumentBeforeChange, updateDescription, lsid, txnNumber, wallTime, other

Fields in `other` are in the event's order. In an event of more than 8 MB they are sorted by name, because an event that
is sent in fragments does not retain the order.

The server uses this module for clients that request Arrow, and the Spark source uses it for servers without Arrow. So
both give equal rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any, Final
from zlib import crc32

from headrace import limits
from headrace.values.bson import find_element, iter_elements, value_size
from headrace.values.keystring.encoding import encode_element
from headrace.values.position import increment, seconds

COLUMNS: Final = (
    "token", "clusterTime", "clusterTimeIncrement", "operationType", "database", "collection", "documentKey",
    "fullDocument", "fullDocumentBeforeChange", "updateDescription", "lsid", "txnNumber", "wallTime", "other",
)  # fmt: skip
DOCUMENTS: Final = (
    "documentKey", "fullDocument", "fullDocumentBeforeChange", "updateDescription", "lsid", "other",
)  # fmt: skip
"""The columns that hold BSON documents."""

SIZE: Final = "bytes"
"""An additional column on request: the size of the event as BSON."""

EventRow = list[Any]
"""One event in the order of `COLUMNS`: times in microseconds since the epoch, documents as BSON."""

_TOKEN, _TIME, _INCREMENT, _KIND, _DATABASE, _COLLECTION = range(6)
_TRANSACTION, _WALL, _OTHER = range(11, 14)
_EMPTY: Final[EventRow] = [None] * len(COLUMNS)
_WALL_MS_MAX: Final = 1 << 52
_LARGE_BYTES: Final = 8 * 1024 * 1024  # less than any event that is sent in fragments: with its token it is over 16 MB

_INT32 = Struct("<i").unpack_from
_INT64 = Struct("<q").unpack_from
_TIMESTAMP = Struct("<II").unpack_from
_PACK = Struct("<i").pack

# The column of a field, by the field's type and name. A raw description replaces the decoded one.
_DOCUMENT_FIELDS: Final = {
    b"\x03documentKey": 6,
    b"\x03fullDocument": 7,
    b"\x03fullDocumentBeforeChange": 8,
    b"\x03lsid": 10,
    b"\x03rawUpdateDescription": 9,
    b"\x03updateDescription": 9,
}
_KINDS: Final = {
    f"{kind}\0\x11clusterTime\0".encode(): kind for kind in ("delete", "insert", "replace", "update")
}  # the bytes between the length of `operationType` and the time
_NAMESPACES: dict[bytes, tuple[str | None, str | None] | None] = {}
"""The names in a raw `ns`, cached for all servers of the process. Bounded by `NAMESPACE_MEMO_COUNT_MAX`."""


def row_of(event: bytes) -> EventRow:
    """The row of a change event, whose `_id` must be its token."""
    if len(event) > _LARGE_BYTES:
        return _any_row(_by_name(event))
    return _plain_row(event) or _any_row(event)


def _by_name(event: bytes) -> bytes:
    """The event with its fields in the order of their names."""
    fields = sorted((name, event[start - len(name) - 2 : end]) for _, name, start, end in iter_elements(event))
    return b"".join((event[:4], *(field for _, field in fields), b"\0"))


def _plain_row(event: bytes) -> EventRow | None:
    """The row of an event in the usual layout, read without comparing field names:

        _id {_data}, operationType, clusterTime, wallTime, [fullDocument,] ns, documentKey, [updateDescription]

    None for an event in another layout.
    """
    if event[4:9] != b"\x03_id\0" or event[13:20] != b"\x02_data\0":
        return None
    at = 9 + _INT32(event, 9)[0]
    text = at + 19
    if event[at : text - 4] != b"\x02operationType\0":
        return None
    at = text + _INT32(event, text - 4)[0]
    kind = _KINDS.get(event[text : at + 13])
    if kind is None or event[at + 21 : at + 31] != b"\x09wallTime\0":
        return None
    increment, seconds = _TIMESTAMP(event, at + 13)
    wall = _INT64(event, at + 31)[0]
    at += 39
    full = description = None
    if event.startswith(b"\x03fullDocument\0", at):
        start = at + 14
        at = start + _INT32(event, start)[0]
        full = event[start:at]
    if not event.startswith(b"\x03ns\0", at):
        return None
    start = at + 4
    at = start + _INT32(event, start)[0]
    names = _NAMESPACES.get(event[start:at])
    if names is None or not event.startswith(b"\x03documentKey\0", at) or abs(wall) >= _WALL_MS_MAX:
        return None
    start = at + 13
    at = start + _INT32(event, start)[0]
    key = event[start:at]
    if event.startswith(b"\x03updateDescription\0", at):
        start = at + 19
        at = start + _INT32(event, start)[0]
        description = event[start:at]
    if event[at]:
        return None
    token = event[24 : 23 + _INT32(event, 20)[0]].decode()
    return [
        token, seconds * 1_000_000, increment, kind, names[0], names[1], key, full, None, description, None, None,
        wall * 1000, None,
    ]  # fmt: skip


def _any_row(event: bytes) -> EventRow:
    """The row of any event, field by field."""
    row = _EMPTY.copy()
    other = b""
    at = 4
    while event[at]:
        start = event.find(b"\0", at + 1)
        field = event[at:start]
        start += 1
        end = start + value_size(event[at], event, start)
        if not _take(row, field, event[start:end]):
            other += event[at:end]
        at = end
    if other:
        row[_OTHER] = b"".join((_PACK(len(other) + 5), other, b"\0"))
    return row


def _take(row: EventRow, field: bytes, value: bytes) -> bool:
    """Put a field into its columns. Return False if it has none, or if its value does not fit."""
    column = _DOCUMENT_FIELDS.get(field)
    if column is not None and row[column] is None:
        row[column] = value
        return True
    if field == b"\x02operationType":
        row[_KIND] = value[4:-1].decode()
        return True
    if field == b"\x11clusterTime":
        increment, seconds = _TIMESTAMP(value)
        row[_TIME], row[_INCREMENT] = seconds * 1_000_000, increment
        return True
    if field == b"\x03_id":
        row[_TOKEN] = _text_of(value)
        return True
    if field == b"\x03ns":
        names = _NAMESPACES[value] if value in _NAMESPACES else _cache_namespace(value)
        if names is None:
            return False
        row[_DATABASE], row[_COLLECTION] = names
        return True
    if field == b"\x09wallTime":
        milliseconds = _INT64(value)[0]
        if abs(milliseconds) < _WALL_MS_MAX:
            row[_WALL] = milliseconds * 1000
            return True
        return False
    if field == b"\x12txnNumber":
        row[_TRANSACTION] = _INT64(value)[0]
        return True
    return False


def _cache_namespace(namespace: bytes) -> tuple[str | None, str | None] | None:
    """The names in an `ns` document; None if it has other fields or types. Adds them to the cache."""
    if len(_NAMESPACES) >= limits.NAMESPACE_MEMO_COUNT_MAX:
        _NAMESPACES.clear()
    names: dict[bytes, str] = {}
    plain = True
    for bson_type, name, start, end in iter_elements(namespace):
        plain = plain and bson_type == 2 and name in (b"db", b"coll")
        names[name] = namespace[start + 4 : end - 1].decode() if plain else ""
    _NAMESPACES[namespace] = known = (names.get(b"db"), names.get(b"coll")) if plain else None
    return known


def token_document(event: bytes) -> bytes:
    """The resume token of an event: the BSON document in `_id`."""
    element = find_element(event, b"_id")
    if element is None:
        raise ValueError("a change event without _id")
    return event[element[1] : element[2]]


def token_text(event: bytes) -> str:
    """The resume token of an event as text. Tokens sort in the order of events."""
    return _text_of(token_document(event))


def _text_of(token: bytes) -> str:
    element = find_element(token, b"_data")
    if element is None or element[0] != 2:
        raise ValueError("a resume token without _data")
    return token[element[1] + 4 : element[2] - 1].decode()


def slice_of(event: bytes, slices: int) -> int:
    """The number of the event's slice, by the `_id` of its document; 0 for an event without a document.

    Equal keys (1 and 1.0) are in one slice, so the events of a document stay together and in order.
    """
    key = find_element(event, b"documentKey")
    element = find_element(event, b"_id", key[1]) if key is not None and key[0] == 3 else None
    if element is None:
        return 0
    return crc32(encode_element(element[0], event[element[1] : element[2]])) % slices


def in_slice(events: Iterable[bytes], slice_: int, slices: int) -> list[bytes]:
    """The events of one slice, in order; all events if there is only one slice."""
    return list(events) if slices == 1 else [event for event in events if slice_of(event, slices) == slice_]


_TOKEN_BYTES: Final = 17  # the other bytes of a token's document
_BITS_BYTES: Final = 16  # the other bytes of its type bits


class RowKind:
    """The values that all rows of one operation on one collection share. Compared by identity."""

    __slots__ = ("collection", "database", "event_bytes", "operation", "other", "shows_document", "shows_update")

    def __init__(self, operation: str, database: str, collection: str, other: bytes | None, event_bytes: int) -> None:
        self.operation = operation
        self.database = database
        self.collection = collection
        self.other = other
        """BSON, or None."""
        self.event_bytes = event_bytes
        """The size of an event of this kind without token, documentKey and detail."""
        self.shows_document = operation in ("insert", "replace")
        self.shows_update = operation == "update"


class RowColumns:
    """Rows in order, as one list per column. `events` has all other events, each with the number of rows before it."""

    __slots__ = ("bits", "counted", "details", "events", "keys", "kinds", "positions", "tokens", "walls")

    def __init__(self) -> None:
        self.kinds: list[RowKind] = []
        self.tokens: list[str] = []
        self.positions: list[int] = []
        self.walls: list[bytes] = []
        """The BSON value of each wallTime. Its last two bytes are zero from 1970 on for some thousand years."""
        self.keys: list[bytes] = []
        self.details: list[bytes | None] = []
        """The document or the description of the update, by row."""
        self.bits: dict[int, int] = {}
        """The size of a token's type bits, by the row's index. Tokens without type bits are left out."""
        self.events: list[tuple[int, bytes]] = []
        self.counted = 0
        """The number of rows that were counted but not collected."""

    def __len__(self) -> int:
        return self.counted + len(self.tokens) + len(self.events)

    def add(self, event: bytes) -> None:
        """Append an event (BSON) that is not a plain change."""
        self.events.append((len(self.tokens), event))

    def rows(self) -> Iterator[EventRow]:
        """All rows, in order."""
        return (row_of(item) if isinstance(item, bytes) else self._row(item) for item in self._in_order())

    def sizes(self) -> Sequence[int]:
        """The sizes in bytes of all events as BSON, in order."""
        sizes = [
            kind.event_bytes + _TOKEN_BYTES + len(token) + len(key) + (len(detail) if detail else 0)
            for kind, token, key, detail in zip(self.kinds, self.tokens, self.keys, self.details, strict=True)
        ]
        for index, size in self.bits.items():
            sizes[index] += _BITS_BYTES + size
        if not self.events:
            return sizes
        return [len(item) if isinstance(item, bytes) else sizes[item] for item in self._in_order()]

    def _in_order(self) -> Iterator[int | bytes]:
        """The events and the indexes of the rows, in order."""
        at = 0
        for before, event in self.events:
            yield from range(at, before)
            yield event
            at = before
        yield from range(at, len(self.tokens))

    def _row(self, at: int) -> EventRow:
        kind, position, detail = self.kinds[at], self.positions[at], self.details[at]
        full = detail if kind.shows_document else None
        description = detail if kind.shows_update else None
        made: list[Any] = [
            self.tokens[at], seconds(position) * 1_000_000, increment(position), kind.operation, kind.database,
            kind.collection, self.keys[at], full, None, description, None, None,
            int.from_bytes(self.walls[at], "little") * 1000, kind.other,
        ]  # fmt: skip
        return made
