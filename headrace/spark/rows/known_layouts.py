"""Divides a column of BSON by the layouts of its documents: known layouts are tried first, and new ones are learned.

Rule: every row is converted exactly once. Rows of layouts with few rows go to the decoder. So does a whole column if
nearly every document has a different layout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
from bson import InvalidBSON

from headrace import limits
from headrace.spark.rows.layouts import BsonColumn, DocumentLayout, LayoutMatch, Numbers, layout_of

ROWS_MIN = 200
"""The least number of rows of a layout. Comparing takes two milliseconds; decoding fewer rows is faster."""
_SAMPLE: Final = 256

Fast = Callable[[LayoutMatch], tuple[Numbers, list[pa.Array]]]
"""Converts documents of one layout. Returns the rows that could be converted, and their columns."""
Exact = Callable[[pa.Array], list[pa.Array]]
"""Converts any documents to the same columns, through the decoder."""


class KnownLayouts:
    """The layouts of a column, remembered between batches."""

    def __init__(self) -> None:
        self._known: list[DocumentLayout] = []

    def columns(self, column: pa.Array, fast: Fast, exact: Exact) -> list[pa.Array]:
        """Return the columns of all rows, in order. `fast` and `exact` must agree on every document."""
        if len(column) < ROWS_MIN or column.type != pa.binary():
            return exact(column)
        try:
            return self._columns(column, fast, exact)
        except (IndexError, InvalidBSON, UnicodeError, pa.ArrowException):
            # A document is malformed, too large or not held. The decoder raises the error, or marks the document.
            self._known.clear()
            return exact(column)

    def _columns(self, column: pa.Array, fast: Fast, exact: Exact) -> list[pa.Array]:
        pieces: list[tuple[Numbers, list[pa.Array]]] = []
        left = np.ones(len(column), np.bool_)
        for match in self._matches(column):
            rows, made = fast(match)
            if len(rows):
                pieces.append((rows, made))
                left[rows] = False
        rest = left.nonzero()[0]
        if len(rest):
            pieces.append((rest, exact(column.take(pa.array(rest)))))
        if len(pieces) == 1:
            return pieces[0][1]
        order = pa.array(np.argsort(np.concatenate([rows for rows, _ in pieces])))
        return [pa.concat_arrays(list(each)).take(order) for each in zip(*(made for _, made in pieces), strict=True)]

    def _matches(self, column: pa.Array) -> list[LayoutMatch]:
        """Return the documents of each layout that has enough of them."""
        data = BsonColumn(column)
        left = np.asarray(column.is_valid()).nonzero()[0] if column.null_count else np.arange(len(column))
        matches: list[LayoutMatch] = []
        for layout in self._known:
            if len(left) >= ROWS_MIN:
                left = self._take(layout, data, left, matches)
        failures = 0
        while len(left) >= ROWS_MIN and failures < limits.LAYOUT_FAILURE_COUNT_MAX:
            new = layout_of(column[int(left[0])].as_py())
            before = len(matches)
            # Match a sample first: most new layouts have hardly any further rows.
            if new is not None and len(new.match(data, left[:: 1 + len(left) // _SAMPLE]).rows) > 1:
                left = self._take(new, data, left, matches)
            if len(matches) == before:
                failures, left = failures + 1, left[1:]
        matches.sort(key=lambda each: -len(each.rows))
        self._known = [each.layout for each in matches]
        return matches

    @staticmethod
    def _take(layout: DocumentLayout, data: BsonColumn, left: Numbers, matches: list[LayoutMatch]) -> Numbers:
        """Add the rows of the layout to `matches`, if there are enough; return the remaining rows."""
        got = layout.match(data, left)
        if len(got.rows) < ROWS_MIN:
            return left
        matches.append(got)
        return left[~np.isin(left, got.rows, assume_unique=True)]
