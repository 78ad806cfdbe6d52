"""Reads a few fields of many raw documents at once, as columns.

    Columns(("city", "age")).values(documents)   → by name, the list of their values: MISSING where there is none

Rule: a value is exactly what `decode` makes of it, as the codec makes it: only the documents around it are not decoded.
A pattern matches whole documents, in C: the fields that some documents had, in their order, each at most once, with the
types and about the sizes that they had. A document that it does not match is decoded as a whole: one with a field twice
or of another type, with a long text, or with its fields in another order.

Making a pattern takes some milliseconds, so the first documents are decoded as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from headrace import limits
from headrace.values.bson.codec import decode
from headrace.values.bson.elements import COUNTED, FIXED, find_element, iter_elements
from headrace.values.bson.value_types import MISSING

FIELD_COUNT_MAX: Final = 4
"""Fields that are read; with more, it is quicker to decode the documents."""
BATCH_COUNT: Final = 256
"""Documents whose columns are read at once: half a millisecond."""
_SAMPLE_COUNT: Final = 32
"""Documents of which a pattern is made."""
_PATTERN_COUNT_MAX: Final = 4
"""Patterns that are made for a scan, each from documents of which the last one did not match half."""
_NAME_COUNT_MAX: Final = 64
_SIZE_COUNT_MAX: Final = 256
"""Sizes that a pattern tries: it takes 20 µs to make for each."""
_BYTES_MAX: Final = 0xFFFF
"""Bytes of a value that a pattern knows."""

Sizes = dict[int, list[int]]
"""The least and the greatest size of a field's values by their types."""


def _sized(least: int, greatest: int, uncounted: int) -> bytes:
    """A pattern for values that begin with their size, in sixteens, so that few alternatives are tried."""
    groups = []
    for first in range((least - uncounted) // 16 * 16, greatest - uncounted + 1, 16):
        those = range(max(first, 4 - uncounted), first + 16)
        choice = b"|".join(b"\\x%02x.{%d}" % (size & 255, size + uncounted - 1) for size in those)
        ends = first & 255, first & 255 | 15, first >> 8
        groups.append(b"(?=[\\x%02x-\\x%02x]\\x%02x\\0\\0)(?:%b)" % (*ends, choice))
    return b"(?:%b)" % b"|".join(groups)


def _pattern(documents: Sequence[bytes], names: Sequence[str]) -> tuple[bytes, list[str]] | None:
    """A pattern of such documents with a group for each field of `names`, and these in their order; None where it would
    be long."""
    order: list[bytes] = []
    found: dict[bytes, Sizes] = {}
    counts: dict[bytes, int] = {}
    for document in documents:
        at = 0
        for kind, name, start, end in iter_elements(document):
            if name not in found:
                order.insert(at, name)
                found[name] = {}
                if len(order) > _NAME_COUNT_MAX:
                    return None
            at = order.index(name) + 1
            counts[name] = counts.get(name, 0) + 1
            sizes = found[name].setdefault(kind, [end - start, end - start])
            sizes[:] = min(sizes[0], end - start), max(sizes[1], end - start)
    pieces, wanted, size_count = [b".{4}"], [], 0
    for name in order:
        choices = []
        for kind, (least, greatest) in found[name].items():
            value = b".{%d}" % FIXED[kind]
            if FIXED[kind] < 0:
                size_count += greatest - least + 16
                if COUNTED[kind] < 0 or size_count > _SIZE_COUNT_MAX or greatest > _BYTES_MAX:
                    return None
                value = _sized(least, greatest, COUNTED[kind])
            choices.append(b"\\x%02x%b\\0%b" % (kind, re.escape(name), value))
        is_wanted = name.decode() in names
        if is_wanted:
            wanted.append(name.decode())
        pieces += (b"(" if is_wanted else b"(?:", b"|".join(choices), b")")
        if counts[name] < len(documents):
            pieces.append(b"?")
    return b"".join(pieces) + b"\\0\\Z", wanted


class _NoMatch:
    """In place of the match of a document that the pattern does not know."""

    __slots__ = ("_groups",)

    def __init__(self, count: int) -> None:
        self._groups = (None,) * count

    def __getitem__(self, group: int) -> None:
        return None

    def groups(self) -> tuple[None, ...]:
        return self._groups

    def end(self, group: int) -> int:
        return -1


class RawColumn(NamedTuple):
    """The raw elements of one field in some documents."""

    elements: list[bytes | None]
    """None: the document has no such field."""
    ends: list[int]
    """Where the elements end in the documents."""
    twice: list[int]
    """The numbers of the documents that have the field more than once."""

    def look_at(self, number: int, document: bytes, name: bytes) -> None:
        """Find the field of a document that no pattern knows."""
        found = find_element(document, name)
        if found is not None:
            _, start, end = found
            self.elements[number], self.ends[number] = document[start - len(name) - 2 : end], end
            if document.find(name + b"\0", end) > 0 and find_element(document, name, end - 4) is not None:
                self.twice.append(number)


def decode_elements(elements: Sequence[bytes | None]) -> list[Any]:
    """The values of raw elements, whose names do not matter; MISSING for None."""
    is_whole = None not in elements
    body = b"".join(elements if is_whole else filter(None, elements))  # type: ignore[arg-type]
    head = (len(body) + 12).to_bytes(4, "little") + b"\x04\0" + (len(body) + 5).to_bytes(4, "little")
    values: list[Any] = decode(head + body + b"\0\0")[""]
    if is_whole:
        return values
    left = iter(values)
    return [MISSING if element is None else next(left) for element in elements]


class Columns:
    """Reads fields of the documents of one scan."""

    __slots__ = ("_decoded", "_match", "_no_match", "_order", "_pattern_count", "names")

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._decoded = 0
        self._match: Callable[[bytes], Any] | None = None
        self._order: list[str] = []
        """The fields that the pattern has, one for each of its groups."""
        self._no_match = _NoMatch(0)
        self._pattern_count = 0

    def values(self, documents: Sequence[bytes]) -> dict[str, list[Any]]:
        """The values of the documents by name. Raises `bson.InvalidBSON`, if it is noticed."""
        if not self.names:
            return {}
        matches, others = self._matches(documents)
        if len(others) == len(documents):
            decoded = list(map(decode, documents))
            return {name: [document.get(name, MISSING) for document in decoded] for name in self.names}
        columns: dict[str, list[Any]] = {}
        rows = [match.groups() for match in matches]
        for name, elements in zip(self._order, zip(*rows)):
            columns[name] = decode_elements(elements)
        for name in self.names:
            columns.setdefault(name, [MISSING] * len(documents))
        for number in others:
            document = decode(documents[number])
            for name in self.names:
                columns[name][number] = document.get(name, MISSING)
        return columns

    def raw(self, documents: Sequence[bytes]) -> dict[str, RawColumn]:
        """The raw elements of the documents by name. Raises `bson.InvalidBSON`, if it is noticed."""
        matches, others = self._matches(documents)
        columns = {name: RawColumn([None] * len(documents), [-1] * len(documents), []) for name in self.names}
        for group, name in enumerate(self._order if matches else (), 1):
            columns[name].elements[:] = [match[group] for match in matches]
            columns[name].ends[:] = [match.end(group) for match in matches]
        for name, column in columns.items():
            for number in others:
                column.look_at(number, documents[number], name.encode())
        return columns

    def cut(self, documents: Sequence[bytes]) -> list[bytes | None]:
        """Each document with these fields alone, in its order; None for one that the pattern does not know."""
        matches, others = self._matches(documents)
        bodies = [b"".join(filter(None, match.groups())) for match in matches]
        made: list[bytes | None] = [(len(body) + 5).to_bytes(4, "little") + body + b"\0" for body in bodies]
        if not made:
            return [None] * len(documents)
        for number in others:
            made[number] = None
        return made

    def _matches(self, documents: Sequence[bytes]) -> tuple[list[Any], Sequence[int]]:
        """The matches of the documents, and the numbers of those that do not match; no matches where none does."""
        if self._match is None:
            self._decoded += len(documents)
            if self._decoded < limits.DECODED_COUNT or self._pattern_count >= _PATTERN_COUNT_MAX or not documents:
                return [], range(len(documents))
            self._make(documents)
            if self._match is None:
                return [], range(len(documents))
        matches = list(map(self._match, documents))
        if None not in matches:
            return matches, ()
        others = [number for number, match in enumerate(matches) if match is None]
        if 2 * len(others) > len(documents):
            self._match = None
        return [match or self._no_match for match in matches], others

    def _make(self, documents: Sequence[bytes]) -> None:
        """Make a pattern."""
        self._pattern_count += 1
        made = _pattern(documents[:: max(1, len(documents) // _SAMPLE_COUNT)], self.names)
        if made is not None:
            pattern, self._order = made
            self._no_match = _NoMatch(len(self._order))
            self._match = re.compile(pattern, re.DOTALL).match


def small_batches(documents: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The documents in pieces of few bytes, so that what is done with a piece takes a millisecond or two, unless one
    document is large."""
    if sum(map(len, documents)) <= limits.COLUMN_BYTES:
        yield documents
        return
    start = size = 0
    for end, document in enumerate(documents):
        if size + len(document) > limits.COLUMN_BYTES and end > start:
            yield documents[start:end]
            start, size = end, 0
        size += len(document)
    yield documents[start:]


class Chunked(Protocol):
    """An iterator of documents that has read some at once."""

    def chunks(self) -> Iterator[list[bytes]]:
        """All documents that are left, as they are read."""


def batches(documents: Iterator[bytes]) -> Iterator[Sequence[bytes]]:
    """All documents in batches of few bytes, unless one document is large."""
    if not hasattr(documents, "chunks"):
        yield from growing_batches(documents, BATCH_COUNT)
        return
    batch: list[bytes] = []
    scan: Chunked = documents  # type: ignore[assignment]
    for chunk in scan.chunks():
        batch += chunk
        if len(batch) >= BATCH_COUNT or len(batch) * len(batch[0]) >= limits.COLUMN_BYTES:
            yield from small_batches(batch)
            batch = []
    yield from small_batches(batch)


def growing_batches(documents: Iterator[bytes], count: int = 1) -> Iterator[Sequence[bytes]]:
    """As `batches`; the first has `count` documents at most, each next one twice as many, so that few are read that are
    perhaps not asked for."""
    batch: list[bytes] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document)
        if size >= limits.COLUMN_BYTES or len(batch) >= count:
            yield batch
            count = min(2 * count, BATCH_COUNT)
            batch, size = [], 0
    if batch:
        yield batch


def cut_documents(
    documents: Iterator[bytes], names: Iterable[str], otherwise: Callable[[bytes], bytes]
) -> Iterator[bytes]:  # fmt: skip
    """The documents with these top-level fields alone, in their order; `otherwise` cuts those that are not read by
    columns."""
    columns = Columns(names)
    if len(columns.names) > FIELD_COUNT_MAX:
        yield from map(otherwise, documents)
        return
    for batch in growing_batches(documents):
        made = columns.cut(batch)
        if None in made:
            yield from (otherwise(document) if cut is None else cut for document, cut in zip(batch, made))
        else:
            yield from made  # type: ignore[misc]
