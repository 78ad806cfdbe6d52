"""Rows of plain changes collected as columns without building their events, and the complete events between them.

Rule: a row equals the result of `event_columns.row_of` for the event, and its size is the size of the event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from headrace.values.arrow.event_columns import EventRow, row_of
from headrace.values.position import increment, seconds

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
