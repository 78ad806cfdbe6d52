"""An update by operators of one raw document. Its fields are replaced in place, and the rest is not decoded.

    spliced(fields, document, context)     → (new document, the entry's `o`)

Rule: the result is what `apply_plain` computes from the decoded document, with the rest of the document copied
unchanged. `sliced_update.py` does the same for many documents, with a pattern that is made from them.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from headrace.errors import CommandError
from headrace.query.update.assign import SetNode
from headrace.query.update.leaf_node import NO_OP, Appended, ApplyParams, UpdateLeafNode
from headrace.query.update.plain_fields import PlainFields
from headrace.query.update.update import UpdateContext
from headrace.values.bson import MISSING, encode_in_order, find_element, value_of

_FIELD_COUNT_MAX: Final = 2
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


def spliced_fields(plain: PlainFields | None) -> tuple[SplicedField, ...]:
    """Return the fields of an update that `spliced` can apply; empty if it cannot."""
    if plain is None or len(plain) > _FIELD_COUNT_MAX:
        return ()
    fields: list[SplicedField] = []
    for name, leaf, path in plain:
        if type(leaf) is tuple or leaf.insert_only or name.startswith("$"):
            return ()
        raw = name.encode()
        element = _element(name, leaf.value) if type(leaf) is SetNode else b""
        fields.append((raw, raw + b"\0", len(raw) + 2, leaf, path, element))
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
