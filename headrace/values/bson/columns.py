"""Reads a few fields of many raw documents at once, as columns.

    Columns(("city", "age")).values(documents)   → by name, the list of their values: MISSING where there is none

Rule: a value is exactly what `decode` makes of it, as the codec makes it: only the documents around it are not decoded.
A pattern walks from element to element up to the field, in C. Python passes the elements that the pattern does not
know: those that are long or of a rare type. Where a document may have a field twice, it is decoded as a whole, so that
all ways to read it agree.

Making a pattern takes some milliseconds, so the first documents are decoded as a whole. Patterns are kept by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, Protocol

from bson import InvalidBSON

from headrace import limits
from headrace.values.bson.codec import decode
from headrace.values.bson.elements import value_size
from headrace.values.bson.value_types import MISSING

_FIRST: Final = 4
"""Where the first element of a document begins."""
_READER_COUNT: Final = 64
FIELD_COUNT_MAX: Final = 4
"""Fields that are read; with more, it is quicker to decode the documents."""
BATCH_COUNT: Final = 256
"""Documents whose columns are read at once: half a millisecond."""


def _sized(sizes: range, counted: int) -> bytes:
    """A pattern for values that begin with their size, as an int32, of which `counted` bytes are counted in it; in
    sixteens, so that few alternatives are tried."""
    groups = []
    for first in range(sizes.start // 16 * 16, sizes.stop, 16):
        those = [size for size in range(first, first + 16) if size in sizes]
        choice = b"|".join(b"\\x%02x.{%d}" % (size, size + 3 - counted) for size in those)
        groups.append(b"(?=[\\x%02x-\\x%02x])(?:%b)" % (those[0], those[-1], choice))
    return b"(?=.\\0\\0\\0)(?:%b)" % b"|".join(groups)


_ELEMENT: Final = (
    rb"(?:\x02[^\0]*+\0%b|\x10[^\0]*+\0.{4}|[\x01\x09\x11\x12][^\0]*+\0.{8}|\x07[^\0]*+\0.{12}|\x08[^\0]*+\0."
    rb"|[\x03\x04][^\0]*+\0%b|\x0a[^\0]*+\0|\x13[^\0]*+\0.{16}|\x05[^\0]*+\0\x10\0\0\0.{17})"
) % (_sized(range(1, 64), 0), _sized(range(5, 128), 4))
"""The commonest elements that are short."""


class FieldReader:
    """Finds the field of one name in raw documents."""

    __slots__ = ("match", "wanted")

    def __init__(self, name: str) -> None:
        self.wanted = name.encode() + b"\0"
        """The bytes that each element of the field has; a field may also be called like the end of another."""
        here = b"." + re.escape(name.encode()) + b"\\0"
        pattern = b"(?:(?!%b)%b)*+((?=%b)%b)?+" % (here, _ELEMENT, here, _ELEMENT)
        self.match = re.compile(pattern, re.DOTALL).match
        """Called with a document and where an element begins: always matches. Its group is the field's element, if the
        pattern comes that far; otherwise it ends at an element that it does not know, or at the end."""

    def element(self, data: bytes, at: int) -> tuple[bytes, int] | None:
        """The raw element of the field and where it ends, if it begins at `at` or later. Raises `bson.InvalidBSON`, if
        it is noticed."""
        try:
            while True:
                match = self.match(data, at)
                assert match is not None
                if match[1] is not None:
                    return match[1], match.end()
                at = match.end()
                bson_type = data[at]
                if not bson_type:
                    return None
                value = data.index(b"\0", at + 1) + 1
                end = value + value_size(bson_type, data, value)
                if data.startswith(self.wanted, at + 1):
                    return data[at:end], end
                at = end
        except (IndexError, ValueError):
            raise InvalidBSON("a value lies beyond the end of its document") from None

    def is_twice(self, data: bytes) -> bool:
        """Whether a document has the field more than once."""
        first = self.element(data, _FIRST)
        return first is not None and self.element(data, first[1]) is not None


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


_readers: Final[dict[str, FieldReader]] = {}


def field_reader(name: str) -> FieldReader:
    """The reader of a field, which takes some milliseconds to make; those made last are kept."""
    reader = _readers.pop(name, None) or FieldReader(name)
    _readers[name] = reader
    if len(_readers) > _READER_COUNT:
        _readers.pop(next(iter(_readers)), None)
    return reader


class Columns:
    """Reads fields of the documents of one scan. Each is looked for behind the one before it in another document."""

    __slots__ = ("_decoded", "_names_left", "_readers", "names")

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._decoded = 0
        self._names_left = list(self.names)
        self._readers: dict[str, FieldReader] = {}

    def values(self, documents: Sequence[bytes]) -> dict[str, list[Any]]:
        """The values of the documents by name. Raises `bson.InvalidBSON`, if it is noticed."""
        if not self._is_ready(documents):
            decoded = list(map(decode, documents))
            return {name: [document.get(name, MISSING) for document in decoded] for name in self.names}
        columns = {}
        for name, reader, matches in self._matches(documents):
            elements: list[bytes | None] = [match[1] for match in matches]
            if None in elements:
                for number, element in enumerate(elements):
                    if element is None:
                        data, at = documents[number], matches[number].end()
                        found = reader.element(data, at) or reader.element(data, _FIRST)
                        elements[number] = found and found[0]
            columns[name] = values = decode_elements(elements)
            for number in _those_twice(documents, reader, elements):
                values[number] = decode(documents[number]).get(name, MISSING)
        return columns

    def cut(self, documents: Sequence[bytes]) -> Iterator[bytes | None]:
        """Each document with these fields alone; None where they are not all found in the order expected."""
        if not self._is_ready(documents):
            yield from repeat(None, len(documents))
            return
        columns: list[list[bytes | None]] = []
        for _, reader, matches in self._matches(documents):
            columns.append([match[1] for match in matches])
            for number in _those_twice(documents, reader, columns[-1]):
                columns[-1][number] = None
        for elements in zip(*columns):
            if None in elements:
                yield None
            else:
                body = b"".join(elements)
                yield (len(body) + 5).to_bytes(4, "little") + body + b"\0"

    def _is_ready(self, documents: Sequence[bytes]) -> bool:
        """Whether there are patterns for all fields. Called with all documents. Makes one pattern at a time, so that
        the command may pause between them. A document shows the order of the fields."""
        if not self._names_left:
            return True
        self._decoded += len(documents)
        if self._decoded < limits.DECODED_COUNT or not documents:
            return False
        if not self._readers:
            first = list(decode(documents[0]))
            self._names_left.sort(key=lambda name: first.index(name) if name in first else len(first), reverse=True)
        while self._names_left:
            name = self._names_left.pop()
            was_there = name in _readers
            self._readers[name] = field_reader(name)
            if not was_there and self._names_left:
                return False
        return True

    def _matches(self, documents: Sequence[bytes]) -> Iterator[tuple[str, FieldReader, list[Any]]]:
        starts: Iterable[int] = repeat(_FIRST)
        for name, reader in self._readers.items():
            matches = list(map(reader.match, documents, starts))
            yield name, reader, matches
            if len(self._readers) > 1:
                starts = [match.end() for match in matches]  # type: ignore[union-attr]


def _those_twice(documents: Sequence[bytes], reader: FieldReader, elements: Sequence[bytes | None]) -> list[int]:
    """The numbers of the documents that have a field more than once, of those in which an element was found."""
    if b"".join(documents).count(reader.wanted) == len(documents) - elements.count(None):
        return []  # its name stands once in each of these, and nowhere else
    return [
        number
        for number, document in enumerate(documents)
        if document.count(reader.wanted) > 1 and reader.is_twice(document)
    ]


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
        for document, cut in zip(batch, columns.cut(batch)):
            yield otherwise(document) if cut is None else cut
