"""An update by operators of raw documents. Only the fields that it changes are decoded and encoded again.

    SlicedUpdate(update, context).apply(documents)     → (new document, the entry's `o`) of each

Rule: the result depends only on the fields of the update. So `Update.apply` computes it from a document of these fields
alone, and once for all documents whose fields have the same bytes. The rest of the document is copied unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from headrace import limits
from headrace.errors import CommandError
from headrace.query.update.update import Diff, Update, UpdateContext
from headrace.time_limit import limited
from headrace.values.bson import decode, encode, encode_in_order
from headrace.values.bson.columns import Columns

_FIELD_COUNT_MAX: Final = 4
"""Each field is searched by itself in a document that does not match the pattern of the others."""
_KNOWN_COUNT_MAX: Final = 1024
_KNOWN_BYTES_MAX: Final = 256
"""The most bytes of fields whose result is cached."""

Elements = tuple[bytes | None, ...]
"""The raw element of each field; None if the field is missing."""
Result = tuple[bytes, bytes] | None
"""(the new document, the `o` of its entry); None if nothing changes."""


class _Change(NamedTuple):
    """The result of the update for documents with certain elements."""

    elements: tuple[bytes, ...]
    """The new element of each field; empty if there is none."""
    added: bytes
    """The elements of new fields, which are appended to the document."""
    growth: int
    logged: bytes


class SlicedUpdate:
    """Applies an update to raw documents."""

    __slots__ = ("_columns", "_context", "_known", "_update", "fields")

    def __init__(self, update: Update, context: UpdateContext, fields: frozenset[str]) -> None:
        """Prepare an update. All documents share `context`. The update changes at most `fields`."""
        self.fields = fields
        self._columns = Columns(sorted(fields))
        self._context = context
        self._known: dict[Elements, _Change | None] = {}
        self._update = update

    def apply(self, documents: Sequence[bytes]) -> list[Result] | None:
        """The result for each document. None if `Update.apply` must decide about a document: the update refuses it, or
        it may have a field twice."""
        raw = self._columns.raw(documents)
        columns = [raw[name] for name in self._columns.names]
        if any(column.twice for column in columns):
            return None
        results: list[Result] = []
        known, wanted = self._known, zip(*(column.elements for column in columns))
        try:
            for number, elements in enumerate(wanted):
                change = known.get(elements, _UNKNOWN)
                if change is _UNKNOWN:
                    change = self._computed(elements)
                if change is None:
                    results.append(None)
                    continue
                document = documents[number]
                size = len(document) + change.growth
                if size > limits.DOCUMENT_BYTES_MAX:
                    return None
                ends = [column.ends[number] for column in columns]
                results.append((_put_together(document, size, elements, ends, change), change.logged))
        except CommandError:
            return None
        return results

    def _computed(self, elements: Elements) -> _Change | None:
        body = b"".join(filter(None, elements))
        before = decode((len(body) + 5).to_bytes(4, "little") + body + b"\0")
        applied = limited(self._update.apply)(before, self._context)
        change = None
        if type(applied.change) is Diff:
            after = applied.document
            new = tuple(_new(element, name, before, after) for element, name in zip(elements, self._columns.names))
            added = _elements({name: value for name, value in after.items() if name not in before})
            growth = sum(map(len, new)) + len(added) - len(body)
            change = _Change(new, added, growth, encode(applied.change.entry))
        if len(body) <= _KNOWN_BYTES_MAX:
            if len(self._known) >= _KNOWN_COUNT_MAX:
                self._known.clear()
            self._known[elements] = change
        return change


_UNKNOWN: Final[Any] = object()


def sliced_update(update: Update, context: UpdateContext) -> SlicedUpdate | None:
    """The update for raw documents; None if its result depends on more than a few fields."""
    fields = update.fields
    if not fields or "_id" in fields or len(fields) > _FIELD_COUNT_MAX or update.needs_position:
        return None
    return SlicedUpdate(update, context, fields)


def _new(element: bytes | None, name: str, before: dict[str, Any], after: dict[str, Any]) -> bytes:
    """The new element of a field; empty if the field is removed or added."""
    if element is None or name not in after:
        return b""
    return element if after[name] is before[name] else _elements({name: after[name]})


def _elements(document: dict[str, Any]) -> bytes:
    return encode_in_order(document)[4:-1]


def _put_together(document: bytes, size: int, elements: Elements, ends: list[int], change: _Change) -> bytes:
    """Replace the elements that end at `ends` by the new elements."""
    pieces = [size.to_bytes(4, "little")]
    at = 4
    places = [(end, len(element), new) for end, element, new in zip(ends, elements, change.elements) if element]
    for end, length, new in places if len(places) < 2 else sorted(places):
        pieces += (document[at : end - length], new)
        at = end
    pieces += (document[at:-1], change.added, b"\0")
    return b"".join(pieces)
