"""The layout of a client's documents, learned from them, by which most of them are checked without a decode.

A client that inserts one document at a time mostly sends documents of one layout. Comparing a document with the layout
takes a tenth of the time of a decode: see `alike.py`.
"""

from __future__ import annotations

from typing import Final

from headrace.values.bson.alike import layout_of
from headrace.values.bson.codec import check_all

_PATIENCE_MAX: Final = 1024
"""The most documents decoded between two attempts to learn a layout. Learning takes as long as four decodes."""
_DOCUMENT_BYTES_MAX: Final = 1024
"""The size of a document up to which a layout is kept: a client of 8 commands makes the server hold 18 KiB."""
_from_bytes: Final = int.from_bytes


class LearnedLayout:
    """Checks documents one by one. It learns the layout of documents that repeat a length."""

    __slots__ = ("_expected", "_last_size", "_mask", "_patience", "_repeated", "_size")

    def __init__(self) -> None:
        self._size = -1
        """The length of the documents of the layout; -1: no layout is known."""
        self._mask = self._expected = 0
        self._last_size = -1  # the length of the last decoded document
        self._repeated = 0  # decoded documents as long as the decoded one before, since a layout was learned
        self._patience = 1

    def check(self, document: bytes) -> None:
        """Check that a document decodes. Raises the errors of `check_all`."""
        size = len(document)
        if size == self._size and _from_bytes(document, "little") & self._mask == self._expected:
            return
        check_all((document,))
        if size == self._last_size:
            self._repeated += 1
            if self._repeated >= self._patience:
                self._learn(document)
        self._last_size = size

    def _learn(self, document: bytes) -> None:
        """Learn the layout of a checked document, and be more patient before the next one."""
        self._repeated = 0
        self._patience = min(2 * self._patience, _PATIENCE_MAX)
        layout = layout_of(document) if len(document) <= _DOCUMENT_BYTES_MAX else None
        if layout is not None:
            self._mask, self._expected = layout
            self._size = len(document)
