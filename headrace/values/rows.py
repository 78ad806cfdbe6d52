"""Byte strings of one length. Batches of documents often are, and so are their keys, entries and checksums.

    rows = as_rows(documents)     → `EqualRows`, or None if the lengths differ
    rows.row_bytes                the length of each

The type says what was found once: a function that gets `EqualRows` does not compare the lengths again, and packs or
cuts all of them with one `struct`. Rule: `EqualRows` are not changed; a slice or a sum of them is a plain list, but
`part` returns rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class EqualRows(list[bytes]):
    """Byte strings of `row_bytes` bytes each."""

    __slots__ = ("row_bytes",)

    def __init__(self, rows: Iterable[bytes], row_bytes: int) -> None:
        super().__init__(rows)
        self.row_bytes = row_bytes


def as_rows(items: Sequence[bytes]) -> EqualRows | None:
    """Return the items as rows, or None if there are none or their lengths differ."""
    if type(items) is EqualRows:
        return items
    if not items or len(items[-1]) != (size := len(items[0])):  # quick, and mostly enough
        return None
    return EqualRows(items, size) if list(map(len, items)).count(size) == len(items) else None


def part(items: list[bytes], start: int, end: int) -> list[bytes]:
    """Return the items from `start` up to `end`, as rows if all are."""
    if start == 0 and end >= len(items):
        return items
    some = items[start:end]
    return EqualRows(some, items.row_bytes) if type(items) is EqualRows else some


def longest(items: Sequence[bytes]) -> int:
    """Return the length of the longest item, or 0."""
    return items.row_bytes if type(items) is EqualRows else max(map(len, items), default=0)


def total_bytes(items: Sequence[bytes]) -> int:
    """Return the sum of the lengths."""
    return items.row_bytes * len(items) if type(items) is EqualRows else sum(map(len, items))
