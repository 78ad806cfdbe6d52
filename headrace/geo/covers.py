"""Covers: cells that together contain a region, and the ranges of their leaves, for an index to search.

A cover by rows has cells of one level. Each row is a list of columns, so the positions of its cells on the curve come
from a table of 16 by 16 cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from headrace.geo.cells import BLOCK_LEVELS, LEAF_LEVEL, block, spans

Span = tuple[int, int]
"""The first and the last number of leaves, signed."""
_SIGN: Final = 1 << 64
_NEXT: Final = 2
"""The difference between the numbers of neighbouring leaves."""
_LAST: Final = (1 << BLOCK_LEVELS) - 1


class Cover(NamedTuple):
    """The numbers of cells of any levels that together contain a whole region."""

    inside: list[int]
    """Cells that are wholly in the region."""
    crossing: list[int]
    """The remaining cells: a point in one of these may be outside of the region."""

    @property
    def numbers(self) -> list[int]:
        """The numbers of all cells."""
        return [*self.inside, *self.crossing]

    def spans(self) -> list[Span]:
        """Return the ranges of leaves in all cells."""
        return spans(self.numbers)

    def sure_spans(self) -> list[Span]:
        """Return the ranges of leaves in cells that are wholly in the region."""
        return spans(self.inside)


def level_cover(level: int, inside: Iterable[int], crossing: Iterable[int]) -> Cover:
    """Return the cells of one level at some positions, as `positions` of `Blocks` returns them, as a cover."""
    shift = 2 * (LEAF_LEVEL - level) + 1
    half = 1 << shift - 1
    return Cover([(at << shift | half) % _SIGN for at in inside], [(at << shift | half) % _SIGN for at in crossing])


class Blocks:
    """The positions of the cells of one level on one face. A position orders as the numbers of leaves do, signed: those
    of the faces 4 and 5 are negative."""

    __slots__ = ("_face", "_known", "_level", "_start")

    def __init__(self, face: int, level: int) -> None:
        self._face = face
        self._level = level - BLOCK_LEVELS
        self._start = (face if face < 4 else face - 8) << 2 * level
        self._known: dict[tuple[int, int], tuple[int, tuple[tuple[int, ...], ...]]] = {}

    def positions(self, row: int, first: int, last: int) -> list[int]:
        """Return the positions of the cells of a row from column `first` to `last`."""
        if first > last:
            return []
        made: list[int] = []
        for column in range(first >> BLOCK_LEVELS, (last >> BLOCK_LEVELS) + 1):
            start, table = self._known.get((column, row >> BLOCK_LEVELS)) or self._block(column, row >> BLOCK_LEVELS)
            left = column << BLOCK_LEVELS
            made += [start | step for step in table[row & _LAST][max(0, first - left) : last + 1 - left]]
        return made

    def _block(self, column: int, row: int) -> tuple[int, tuple[tuple[int, ...], ...]]:
        at, table = block(self._face, self._level, column, row)
        made = self._known[column, row] = self._start | at << 2 * BLOCK_LEVELS, table
        return made


def joined(given: Iterable[Span], step: int = _NEXT) -> list[Span]:
    """Return some ranges as ascending ranges that are apart. `step`: the difference between neighbouring numbers."""
    made: list[Span] = []
    for first, last in sorted(given):
        if made and first <= made[-1][1] + step:
            made[-1] = made[-1][0], max(made[-1][1], last)
        else:
            made.append((first, last))
    return made


def without(given: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """Return the leaves of ascending ranges that are in none of the others, which are ascending and apart."""
    made: list[Span] = []
    at = 0
    for first, last in given:
        while at < len(others) and others[at][1] < first:
            at += 1
        number = at
        while number < len(others) and others[number][0] <= last:
            if first < others[number][0]:
                made.append((first, others[number][0] - 1))
            first = others[number][1] + 1
            number += 1
        if first <= last:
            made.append((first, last))
    return made
