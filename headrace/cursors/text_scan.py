"""A walk through the keys of several terms to the documents that have one of them, with the sums of their scores.

It first reads all keys and adds up the scores of each record. Then it fetches the documents, highest scores first. Both
parts resume after a pause. If the walk reads another view, documents may have changed, so their scores are computed
again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from headrace import limits
from headrace.cursors.collection_scan import ChunkedScan
from headrace.cursors.index_scan import Range, check_index, plan_summary, walk_keys
from headrace.running_command import examined
from headrace.store.catalog import Collection, Index
from headrace.store.view import LEFT_OUT, Skip, View
from headrace.values.keystring.decoding import decode_value

RECORD_BYTES: Final = 200
"""The approximate memory of a record with its score, in bytes."""
_KEY_COUNT: Final = 1024
"""The maximum number of keys that are read from one view before a possible pause."""
_KNOWN_COUNT_MAX: Final = 10_000
_RECORD_LENGTH: Final = 8
_SCORE_BYTES: Final = 8
_DOUBLE: Final = 1
_INTEGERS: Final = (0x10, 0x12)

_UNKNOWN: Final = -1.0


def score_of(item: bytes) -> tuple[bytes, float | None]:
    """Return the raw document and the score from an item of the walk; None: the score must be computed."""
    score: float = struct.unpack("<d", item[-_SCORE_BYTES:])[0]
    return item[:-_SCORE_BYTES], None if score == _UNKNOWN else score


@dataclass(slots=True)
class TermKeys:
    """The keys of one term, with the number of keys read."""

    index: Index
    ranges: Sequence[Range]
    skip: Skip | None
    score_at: int
    """The offset of the score in a key."""
    key_count: int = 0
    left_out_count: int = 0


class TextScan(ChunkedScan):
    """The documents of a collection by descending score, each followed by its score (`score_of`)."""

    __slots__ = (
        "_collection", "_is_mixed", "_known", "_last", "_note_bytes", "_read", "_records", "_scores", "_seen_by",
        "_term", "terms",
    )  # fmt: skip

    def __init__(
        self, view: Callable[[], View], collection: Collection, terms: Sequence[TermKeys],
        note_bytes: Callable[[int], None], wanted: int | None = None,
    ) -> None:  # fmt: skip
        """`note_bytes` is called with the memory of new records in bytes."""
        super().__init__(view, wanted)
        self.terms = list(terms)
        self._collection = collection
        self._note_bytes = note_bytes
        self._term = 0
        self._last: bytes | None = None
        self._scores: dict[bytes, float] = {}
        self._known: dict[bytes, float] = {}
        self._records: list[bytes] | None = None
        self._read = 0
        self._seen_by: View | None = None
        self._is_mixed = False
        """Whether keys were read from several views."""

    def _chunk(self) -> list[bytes] | None:
        if self._records is None:
            self._read_keys()
            return []
        if self._read >= len(self._records):
            return None
        view = self._view()
        is_same = view is self._seen_by and not self._is_mixed
        chunk: list[bytes] = []
        size = fetched = 0
        while fetched < self._count and size < limits.VIEW_CHUNK_BYTES and self._read < len(self._records):
            record = self._records[self._read]
            self._read += 1
            if is_same:
                raw = view.fetch(self._collection, self.terms[0].index, record)
            elif (read := view.by_record(self._collection, record)) is None:
                continue  # it was deleted meanwhile
            else:
                raw = read
            fetched += 1
            size += len(raw)
            chunk.append(raw + struct.pack("<d", self._scores[record] if is_same else _UNKNOWN))
        examined("TEXT_OR", fetched, 0)
        return chunk

    def _read_keys(self) -> None:
        """Read some keys. After the last key, sort the records by score."""
        view = self._view()
        self._seen_by = self._seen_by or view
        self._is_mixed = self._is_mixed or view is not self._seen_by
        if self._term >= len(self.terms):
            scores = self._scores
            self._records = sorted(scores, key=lambda record: -scores[record])
            return
        term = self.terms[self._term]
        check_index(view, self._collection, term.index)
        before, count = len(self._scores), 0
        for key, record in walk_keys(view, term.index, term.ranges, backward=True, after=self._last, skip=term.skip):
            self._last = key
            count += 1
            if record is LEFT_OUT:
                term.left_out_count += 1
            else:
                self._scores[record] = self._scores.get(record, 0.0) + self._score(key[term.score_at :])
            if count == _KEY_COUNT:
                break
        else:
            self._term += 1
            self._last = None
        term.key_count += count
        self._note_bytes((len(self._scores) - before) * RECORD_BYTES)
        examined(plan_summary("IXSCAN", term.index), 0, count)

    def _score(self, piece: bytes) -> float:
        """Return the score at the beginning of a piece of a key."""
        known = self._known.get(piece[:-_RECORD_LENGTH])
        if known is not None:
            return known
        kind, value = decode_value(piece)
        score = struct.unpack("<d", value)[0] if kind == _DOUBLE else float(int.from_bytes(value, "little"))
        if len(self._known) >= _KNOWN_COUNT_MAX:
            self._known.clear()
        self._known[piece[:-_RECORD_LENGTH]] = score
        return score
