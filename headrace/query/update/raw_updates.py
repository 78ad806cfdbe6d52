"""Updates by operators of raw documents. Only the fields that an update changes are decoded and encoded again.

    SlicedUpdate(update, context).apply(documents)     → (new document, the entry's `o`) of each
    spliced(fields, document, context)                 → (new document, the entry's `o`)

Rule of `SlicedUpdate`, for many documents: the result depends only on the fields of the update. So `Update.apply`
computes it from a document of these fields alone, and once for all documents whose fields have the same bytes. The
rest of the document is copied unchanged.

Rule of `spliced`, for one document: the result is what `Walk` computes from the decoded document.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

from headrace import limits
from headrace.errors import CommandError
from headrace.query.update.operators import SetNode
from headrace.query.update.update import Diff, Update, UpdateContext
from headrace.query.update.update_tree import NO_OP, Appended, ApplyParams, RenameNode, UpdateLeafNode, UpdateObjectNode
from headrace.time_limit import limited
from headrace.values.bson import MISSING, decode, encode, encode_in_order, find_element, value_of
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
                if len(document) + change.growth > limits.DOCUMENT_BYTES_MAX:
                    return None
                places = [
                    (column.ends[number] - len(element), column.ends[number], new)
                    for column, element, new in zip(columns, elements, change.elements) if element
                ]  # fmt: skip
                if change.added:
                    places.append((len(document) - 1, len(document) - 1, change.added))
                results.append((_replaced(document, places), change.logged))
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


# One document.


_SPLICED_COUNT_MAX: Final = 2
"""Each field is searched for and encoded by itself: three take as long as decoding and encoding a short document."""
_INT32_TYPE: Final = 0x10
_INT32: Final = Struct("<i")
_EXACT: Final = frozenset({0x01, 0x02, 0x07, 0x08, 0x09, 0x0A, 0x10, 0x11, 0x12, 0x13})
"""Types whose values are identical only if their bytes are equal. The codec reads some others alike, and others may
contain those."""
_BEFORE_DIFF: Final = b"\x10$v\0\x02\0\0\0\x03diff\0"
_BEFORE_UPDATES: Final = b"\x03u\0"
_LOGGED_HEAD = Struct(f"<i{len(_BEFORE_DIFF)}si{len(_BEFORE_UPDATES)}si").pack
_UPDATES_BYTES: Final = 5
_DIFF_BYTES: Final = 4 + len(_BEFORE_UPDATES) + _UPDATES_BYTES + 1
_LOGGED_BYTES: Final = 4 + len(_BEFORE_DIFF) + _DIFF_BYTES + 1


SplicedField = tuple[bytes, bytes, int, UpdateLeafNode, tuple[str, ...], bytes]
"""A top-level field that an update changes.

(its raw name, the name with its zero, the bytes of an element before its value, the leaf, the path, the new element if
it is the same for every document, otherwise empty)
"""


def spliced_fields(tree: UpdateObjectNode) -> tuple[SplicedField, ...]:
    """Return the fields of an update that `spliced` can apply; empty if it cannot."""
    if len(tree.ordered) > _SPLICED_COUNT_MAX or tree.positional is not None or "_id" in tree.children:
        return ()
    fields: list[SplicedField] = []
    for name, leaf in tree.ordered:
        if not isinstance(leaf, UpdateLeafNode) or type(leaf) is RenameNode or leaf.insert_only or name[0] == "$":
            return ()
        if leaf.depth >= limits.NESTING_MAX:
            return ()
        raw = name.encode()
        element = _element(name, leaf.value) if type(leaf) is SetNode else b""
        fields.append((raw, raw + b"\0", len(raw) + 2, leaf, (name,), element))
    return tuple(fields)


def spliced(
    fields: tuple[SplicedField, ...], document: bytes, context: UpdateContext
) -> tuple[bytes, bytes] | None:  # fmt: skip
    """Return the new document and the `o` of its entry, `{$v: 2, diff: {u: …}}`; the `o` is empty if nothing changes.

    None: `Update.apply` must compute the result. A field is missing, removed, appended to or there twice, or the update
    refuses it.
    """
    elements, places = b"", []
    for name, name_end, head_bytes, leaf, path, element in fields:
        found = find_element(document, name)
        if found is None:
            return None
        kind, start, end = found
        if document.find(name_end, end) >= 0 and find_element(document, name, end - 4) is not None:
            return None
        first = start - head_bytes
        if element and document.startswith(element, first) and len(element) == end - first:
            continue
        if not element or kind not in _EXACT:
            changed = _changed(document, found, leaf, context, path)
            if changed is None:
                return None
            if not changed:
                continue
            element = changed
        elements += element
        places.append((first, end, element))
    if not places:
        return document, b""
    size = len(elements)
    head = _LOGGED_HEAD(
        size + _LOGGED_BYTES, _BEFORE_DIFF, size + _DIFF_BYTES, _BEFORE_UPDATES, size + _UPDATES_BYTES
    )  # fmt: skip
    return _replaced(document, places), head + elements + b"\0\0\0"


def _changed(
    document: bytes, found: tuple[int, int, int], leaf: UpdateLeafNode, context: UpdateContext, path: tuple[str, ...]
) -> bytes | None:
    """Return the new element of a field; empty if nothing changes, None if `Update.apply` must compute it."""
    kind, start, end = found
    is_int = kind == _INT32_TYPE
    old = _INT32.unpack_from(document, start)[0] if is_int else value_of(kind, document, start, end)
    try:
        value = leaf.change(old, ApplyParams({}, context), path)
    except CommandError:
        return None
    if value is NO_OP:
        return b""
    if value is MISSING or type(value) is Appended:
        return None
    return _element(path[0], value)


def _element(name: str, value: Any) -> bytes:
    """Return the element that the codec makes, sooner if it is a 32-bit integer."""
    if type(value) is int and -(2**31) <= value < 2**31:
        return b"\x10" + name.encode() + b"\0" + _INT32.pack(value)
    return encode_in_order({name: value})[4:-1]


def _replaced(document: bytes, places: list[tuple[int, int, bytes]]) -> bytes:
    """Replace the bytes at each (start, end) by others."""
    if len(places) == 1:
        ((start, end, element),) = places
        if len(element) == end - start:
            return b"".join((document[:start], element, document[end:]))
    else:
        places.sort()
    pieces, at = [b""], 4
    for start, end, element in places:
        pieces += (document[at:start], element)
        at = end
    pieces.append(document[at:])
    pieces[0] = _INT32.pack(sum(map(len, pieces)) + 4)
    return b"".join(pieces)
