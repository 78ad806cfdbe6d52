"""Reads a few fields of many raw documents at once, as columns.

    Columns(("city", "age")).values(documents)   → a list of values by name: MISSING where a document lacks the field

Rule: a value is exactly the value that `decode` returns, because the codec makes it. The rest of the document is not
decoded. A pattern matches complete documents, in C. The pattern is made from some documents: it has their fields, in
order, each at most once, with about the same types and sizes. A document that does not match is decoded completely: for
example one with a repeated field, another type, a long text or another order of fields.

Making a pattern takes some milliseconds, so the first documents are decoded completely.
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
"""Fields to read. Decoding the documents is quicker for more fields."""
BATCH_COUNT: Final = 256
"""Documents whose columns are read at once. A batch takes half a millisecond."""
_SAMPLE_COUNT: Final = 32
"""Documents from which a pattern is made."""
_PATTERN_COUNT_MAX: Final = 4
"""Patterns made for one scan. A new one is made when the last one did not match half of the documents."""
_NAME_COUNT_MAX: Final = 64
_SIZE_COUNT_MAX: Final = 256
"""Sizes that a pattern tries. Each adds 20 µs to the time to make the pattern."""
_BYTES_MAX: Final = 0xFFFF
"""The longest value, in bytes, that a pattern can match."""

Sizes = dict[int, list[int]]
"""The least and the greatest size of a field's values, by type."""


def _sized(least: int, greatest: int, uncounted: int) -> bytes:
    """A pattern for values that begin with their size. Sizes are grouped by sixteen so that few alternatives are
    tried."""
    groups = []
    for first in range((least - uncounted) // 16 * 16, greatest - uncounted + 1, 16):
        those = range(max(first, 4 - uncounted), first + 16)
        choice = b"|".join(b"\\x%02x.{%d}" % (size & 255, size + uncounted - 1) for size in those)
        ends = first & 255, first & 255 | 15, first >> 8
        groups.append(b"(?=[\\x%02x-\\x%02x]\\x%02x\\0\\0)(?:%b)" % (*ends, choice))
    return b"(?:%b)" % b"|".join(groups)


def _pattern(documents: Sequence[bytes], names: Sequence[str]) -> tuple[bytes, list[str]] | None:
    """(pattern, names) for documents like these: the names of `names` in the order of the pattern's groups. None if the
    pattern would be long."""
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
    """Stands for the match of a document that does not match the pattern."""

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
    """The raw elements of one field, by document."""

    elements: list[bytes | None]
    """The raw element; None if the document lacks the field."""
    ends: list[int]
    """The offset in the document where the element ends."""
    twice: list[int]
    """The numbers of the documents that have the field more than once."""

    def look_at(self, number: int, document: bytes, name: bytes) -> None:
        """Find the field in a document that does not match the pattern."""
        found = find_element(document, name)
        if found is not None:
            _, start, end = found
            self.elements[number], self.ends[number] = document[start - len(name) - 2 : end], end
            if document.find(name + b"\0", end) > 0 and find_element(document, name, end - 4) is not None:
                self.twice.append(number)


def decode_elements(elements: Sequence[bytes | None]) -> list[Any]:
    """The values of raw elements, whatever their names; MISSING for None."""
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
        """The field of each group of the pattern."""
        self._no_match = _NoMatch(0)
        self._pattern_count = 0

    def values(self, documents: Sequence[bytes]) -> dict[str, list[Any]]:
        """The values of the documents by name. Raises `bson.InvalidBSON` for malformed documents, but not for all."""
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
        """The raw elements of the documents by name. Raises `bson.InvalidBSON` for malformed documents, but not for
        all."""
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
        """Each document reduced to these fields, in its order; None for a document that does not match the pattern."""
        matches, others = self._matches(documents)
        bodies = [b"".join(filter(None, match.groups())) for match in matches]
        made: list[bytes | None] = [(len(body) + 5).to_bytes(4, "little") + body + b"\0" for body in bodies]
        if not made:
            return [None] * len(documents)
        for number in others:
            made[number] = None
        return made

    def _matches(self, documents: Sequence[bytes]) -> tuple[list[Any], Sequence[int]]:
        """(match of each document, the numbers of the documents that do not match). No matches if no document
        matches."""
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
        """Make a pattern from some of the documents."""
        self._pattern_count += 1
        made = _pattern(documents[:: max(1, len(documents) // _SAMPLE_COUNT)], self.names)
        if made is not None:
            pattern, self._order = made
            self._no_match = _NoMatch(len(self._order))
            self._match = re.compile(pattern, re.DOTALL).match


def small_batches(documents: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The documents in batches of few bytes, so that work on a batch takes a millisecond or two. A large document is
    alone in its batch."""
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
    """An iterator that reads documents in chunks."""

    def chunks(self) -> Iterator[list[bytes]]:
        """All remaining documents, in the chunks in which they are read."""


def batches(documents: Iterator[bytes]) -> Iterator[Sequence[bytes]]:
    """All documents in batches of few bytes. A large document may exceed this."""
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
    """Like `batches`, but the first has at most `count` documents and each next one twice as many. So few documents are
    read if the caller stops early."""
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
    """The documents reduced to these top-level fields, in their order. `otherwise` reduces the documents that columns
    cannot."""
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
