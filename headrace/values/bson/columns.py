"""Reads a few fields of many raw documents at once, as columns.

    Columns(("city", "age")).values(documents)   → a list of values by name: MISSING where a document lacks the field

Rule: a value is exactly the value that `decode` returns, because the codec makes it. The rest of the document is not
decoded. A pattern matches complete documents, one after another, in a single call of PCRE2. The pattern is made from
some documents: it has their fields, in order, each at most once, with about the same types and sizes. A document that
does not match is decoded completely: for example one with a repeated field, another type, a long text or another order
of fields.

Making a pattern takes up to a millisecond, so the first documents are decoded completely.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import add
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import pcre2

from headrace import limits
from headrace.values.bson.codec import COUNTED, FIXED, decode, decode_many, find_element, iter_elements
from headrace.values.bson.value_types import MISSING

BATCH_COUNT: Final = 256
"""Documents whose columns are read at once."""
_DECODED_COUNT_MAX: Final = 16
"""Documents that are decoded at once for stages that read them one by one."""
_SAMPLE_COUNT: Final = 32
"""Documents from which a pattern is made."""
_SHAPE_COUNT_MAX: Final = 4
"""Patterns made for one scan. A new one is made when the last one did not match enough documents."""
_NAME_COUNT_MAX: Final = 64
_SIZE_COUNT_MAX: Final = 2048
"""Sizes for which a pattern has an alternative. Each takes 0.5 µs to make."""
_BYTES_MAX: Final = 0xFFFF
"""The longest value, in bytes, that a pattern can match."""
_OTHERS_MAX: Final = 0.25
_OTHERS_MIN: Final = 4
"""The documents of a batch that may not match, as a share and as a number. If there are more, the rest is decoded."""

_DATE: Final = 0x09

Sizes = dict[int, list[int]]
"""The least and the greatest size of a field's values, by type."""

_SEPARATOR: Final = b"\0" + os.urandom(12).translate(None, b"\0$\\") + b"\1"
"""Ends each piece of a document. It cannot overlap with itself, so a document that contains it adds a piece."""


def _sized(least: int, greatest: int, uncounted: int) -> bytes:
    """A pattern for values that begin with their size. Sizes are grouped by 256 and by 16 so that few alternatives are
    tried."""
    groups: dict[int, list[bytes]] = {}
    for first in range((least - uncounted) // 16 * 16, greatest - uncounted + 1, 16):
        those = range(max(first, 4 - uncounted), first + 16)
        choice = b"|".join(b"\\x%02x.{%d}" % (size & 255, size + uncounted - 1) for size in those)
        ends = first & 255, first & 255 | 15
        groups.setdefault(first >> 8, []).append(b"(?=[\\x%02x-\\x%02x])(?:%b)" % (*ends, choice))
    return b"(?:%b)" % b"|".join(
        b"(?=.\\x%02x\\0\\0)(?:%b)" % (high, b"|".join(choices)) for high, choices in groups.items()
    )


class _Shape(NamedTuple):
    """Documents with the same fields."""

    pattern: pcre2.Pattern
    """Two groups for each field: the bytes between the field before and this one, and its element."""
    names: list[str]
    """The fields in the order of the pattern."""
    is_complete: bool
    """No document of the sample lacks one of the fields."""
    is_date: bool
    """There is only one field, always a date."""

    def values(self, documents: Sequence[bytes]) -> tuple[dict[str, list[Any]], int]:
        """(values by name, of how many documents): up to the first document that does not match."""
        elements = self._elements()
        if not self.is_complete:
            columns, count = self._pieces(documents, elements)
            return dict(zip(self.names, map(_decoded_or_missing, columns))), count
        found, count = self._replaced(documents, b"".join(elements))
        values = _decoded(found)
        return {name: values[number :: len(elements)] for number, name in enumerate(self.names)}, count

    def dates(self, documents: Sequence[bytes]) -> tuple[list[int], int]:
        """(the dates in ms since the Unix epoch, of how many documents): as `values`."""
        elements, count = self._replaced(documents, b"$2")
        reader = Struct(f"<{len(self.names[0].encode()) + 2}xq")
        return [milliseconds for (milliseconds,) in reader.iter_unpack(elements)], count

    def raw(self, documents: Sequence[bytes]) -> tuple[tuple[list[str], list[list[bytes]]], int]:
        """((names, what stands before each field and its element), of how many documents): as `values`. The element is
        empty if the document lacks the field."""
        pieces, count = self._pieces(documents, [b"$%d" % group for group in range(1, 2 * len(self.names) + 1)])
        return (self.names, pieces), count

    def bodies(self, documents: Sequence[bytes]) -> tuple[list[bytes], int]:
        """(the fields of each document, of how many documents): as `values`."""
        (bodies,), count = self._pieces(documents, [b"".join(self._elements())])
        return bodies, count

    def _elements(self) -> list[bytes]:
        return [b"$%d" % (2 * number) for number in range(1, len(self.names) + 1)]

    def _pieces(self, documents: Sequence[bytes], templates: Sequence[bytes]) -> tuple[list[list[bytes]], int]:
        """(a list for each template, of how many documents): as `values`."""
        made, count = self._replaced(documents, b"".join(template + _SEPARATOR for template in templates))
        pieces = made.split(_SEPARATOR)
        if len(pieces) != count * len(templates) + 1:
            return [[] for _ in templates], 0
        del pieces[-1]
        return [pieces[number :: len(templates)] for number in range(len(templates))], count

    def _replaced(self, documents: Sequence[bytes], template: bytes) -> tuple[bytes, int]:
        data = b"".join(documents)
        try:
            made, count = self.pattern.subn(template, data)
        except pcre2.LibraryError:
            return b"", 0
        if count < len(documents):
            made = made[: len(made) - sum(map(len, documents[count:]))]
        return made, count


def _shape_of(documents: Sequence[bytes], names: Sequence[str]) -> _Shape | None:
    """The shape of documents like these, if their pattern is not too long."""
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
    pieces, read, size_count = [b"\\G(.{4}"], list[str](), 0
    for name in order:
        choices = []
        for kind, (least, greatest) in found[name].items():
            value = b".{%d}" % FIXED[kind]
            if FIXED[kind] < 0:
                size_count += greatest - least + 16
                if COUNTED[kind] < 0 or size_count > _SIZE_COUNT_MAX or greatest > _BYTES_MAX:
                    return None
                value = _sized(least, greatest, COUNTED[kind])
            choices.append(b"\\x%02x%b\\x00%b" % (kind, re.escape(name), value))
        is_read = name.decode() in names
        if is_read:
            read.append(name.decode())
        optional = b"?" if counts[name] < len(documents) else b""
        pieces.append((b")(%b)%b(" if is_read else b"(?:%b)%b") % (b"|".join(choices), optional))
    try:
        pattern = pcre2.compile(b"".join(pieces) + b"\\x00)", pcre2.S)
    except pcre2.LibraryError:
        return None
    is_complete = all(counts[name.encode()] == len(documents) for name in read)
    is_date = is_complete and [set(found[name.encode()]) for name in read] == [{_DATE}]
    return _Shape(pattern, read, is_complete, is_date)


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


def _decoded(elements: bytes) -> list[Any]:
    """The values of elements, whatever their names."""
    head = (len(elements) + 12).to_bytes(4, "little") + b"\x04\0" + (len(elements) + 5).to_bytes(4, "little")
    return decode(head + elements + b"\0\0")[""]  # type: ignore[no-any-return]


def _decoded_or_missing(elements: Sequence[bytes]) -> list[Any]:
    """The value of each element; MISSING for an empty one."""
    values = _decoded(b"".join(elements))
    if len(values) == len(elements):
        return values
    left = iter(values)
    return [next(left) if element else MISSING for element in elements]


Made = TypeVar("Made")


class Columns:
    """Reads fields of the documents of one scan."""

    __slots__ = ("_decoded_count", "_shape", "_shape_count", "names")

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._decoded_count = 0
        self._shape: _Shape | None = None
        self._shape_count = 0

    def values(self, documents: Sequence[bytes]) -> dict[str, list[Any]]:
        """The values of the documents by name. Raises `bson.InvalidBSON` for malformed documents, but not for all."""
        columns: dict[str, list[Any]] = {name: [] for name in self.names}
        for run, found in self._runs(documents, _Shape.values) if columns else ():
            decoded = decode_many(run) if found is None else []
            for name, column in columns.items():
                if found is None:
                    column += [document.get(name, MISSING) for document in decoded]
                else:
                    column += found[name] if name in found else [MISSING] * len(run)
        return columns

    def dates(self, documents: Sequence[bytes]) -> list[int] | None:
        """The only field of the documents in ms since the Unix epoch, if all are known to have a date there."""
        shape = self._shape
        if shape is None or not shape.is_date:
            return None
        dates, count = shape.dates(documents)
        return dates if count == len(documents) else None

    def raw(self, documents: Sequence[bytes]) -> dict[str, RawColumn]:
        """The raw elements of the documents by name. Raises `bson.InvalidBSON` for malformed documents, but not for
        all."""
        columns = {name: RawColumn([None] * len(documents), [-1] * len(documents), []) for name in self.names}
        first = 0
        for run, found in self._runs(documents, _Shape.raw):
            if found is None:
                for name, column in columns.items():
                    for number, document in enumerate(run, first):
                        column.look_at(number, document, name.encode())
            else:
                ends: Iterable[int] = repeat(0)
                names, pieces = found
                for name, before, elements in zip(names, pieces[::2], pieces[1::2]):
                    ends = list(map(add, map(add, ends, map(len, before)), map(len, elements)))
                    columns[name].elements[first : first + len(run)] = [element or None for element in elements]
                    columns[name].ends[first : first + len(run)] = ends
            first += len(run)
        return columns

    def cut(self, documents: Sequence[bytes]) -> list[bytes | None]:
        """Each document reduced to these fields, in its order; None for a document that does not match the pattern."""
        made: list[bytes | None] = []
        for run, bodies in self._runs(documents, _Shape.bodies):
            if bodies is None:
                made += [None] * len(run)
            else:
                made += [(len(body) + 5).to_bytes(4, "little") + body + b"\0" for body in bodies]
        return made

    def _runs(
        self, documents: Sequence[bytes], read: Callable[[_Shape, Sequence[bytes]], tuple[Made, int]]
    ) -> Iterator[tuple[Sequence[bytes], Made | None]]:
        """(documents, what `read` finds in them), in order: None for documents that do not match."""
        shape, start, others = self._known_shape(documents), 0, 0
        while start < len(documents):
            left = documents[start:] if start else documents
            if shape is None or others > max(_OTHERS_MIN, len(documents) * _OTHERS_MAX):
                self._shape = None
                yield left, None
                return
            found, count = read(shape, left)
            if count:
                yield left[:count], found
            if count < len(left):
                yield left[count : count + 1], None
                others += 1
            start += count + 1

    def _known_shape(self, documents: Sequence[bytes]) -> _Shape | None:
        """The shape of the documents of the scan; None for the first ones, and if shapes did not help."""
        if self._shape is None:
            self._decoded_count += len(documents)
            if self._decoded_count >= limits.DECODED_COUNT and self._shape_count < _SHAPE_COUNT_MAX and documents:
                self._shape_count += 1
                self._shape = _shape_of(documents[:: max(1, len(documents) // _SAMPLE_COUNT)], self.names)
        return self._shape


def values_below(column: Sequence[Any], path: Sequence[str]) -> Sequence[Any] | None:
    """The value at a path in each value of a column; None unless all values on the way are objects."""
    for name in path:
        if set(map(type, column)) != {dict}:
            return None
        column = [value.get(name, MISSING) for value in column]
    return column


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


def growing_batches(
    documents: Iterator[bytes], count: int = 1, count_max: int | None = None
) -> Iterator[Sequence[bytes]]:
    """Like `batches`, but the first has at most `count` documents and each next one twice as many, up to `count_max`.
    So few documents are read if the caller stops early."""
    batch: list[bytes] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document)
        if size >= limits.COLUMN_BYTES or len(batch) >= count:
            yield batch
            count = min(2 * count, count_max or BATCH_COUNT)
            batch, size = [], 0
    if batch:
        yield batch


def decoded(documents: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """The documents, decoded in batches: small ones, as a cursor may hold one for long."""
    for batch in growing_batches(documents, count_max=_DECODED_COUNT_MAX):
        yield from decode_many(batch)


def cut_documents(
    documents: Iterator[bytes], names: Iterable[str], otherwise: Callable[[bytes], bytes]
) -> Iterator[bytes]:  # fmt: skip
    """The documents reduced to these top-level fields, in their order. `otherwise` reduces the documents that columns
    cannot."""
    columns = Columns(names)
    for batch in growing_batches(documents):
        made = columns.cut(batch)
        if None in made:
            yield from (otherwise(document) if cut is None else cut for document, cut in zip(batch, made))
        else:
            yield from made  # type: ignore[misc]
