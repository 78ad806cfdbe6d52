"""Computes the difference of two documents in the oplog's format ($v: 2), and applies one.

Rule: `apply_diff(pre, diff)` gives exactly the post-image, including the order of fields, for every diff that
`compute_diff` makes or an update by operators records.

The diff of a document has these sections, without empty ones, in this order (reference: change-streams.md §3.1):

    {d: {name: false}, u: {name: new value}, i: {name: value}, s<name>: sub-diff, …}

The diff of an array is `{a: true, [l: new length], u<index>: value | s<index>: sub-diff, …}`, indexes ascending.

`update/walk.py` decides which diff operators record. Values in a diff are shared with the documents.
"""

from __future__ import annotations

from struct import pack
from typing import Any, Final

import bson

from headrace.values.bson import OPTIONS, encode

ENTRY_OVERHEAD_BYTES: Final = 15
"""The bytes of a diff's oplog entry besides the diff ({$v: 2, diff: …}). A diff must save more than this."""

_SCALARS: Final = frozenset({int, str, bool, type(None)})
_EMPTY_ARRAY_DIFF_BYTES: Final = 9
_EMPTY_DOCUMENT_BYTES: Final = 5
_RESIZE_BYTES: Final = 7
_SECTION_BYTES: Final = 8


def identical(left: Any, right: Any) -> bool:
    """Whether both values have the same BSON bytes: same types (1 is not 1.0), same order of fields; NaN equals NaN."""
    kind = type(left)
    if kind is not type(right):
        return False
    if kind in _SCALARS:
        return bool(left == right)
    if kind is dict:
        if len(left) != len(right):
            return False
        fields = left.items()
        for (name, value), (other_name, other) in zip(fields, right.items()):
            if name != other_name or not identical(value, other):
                return False
        return True
    if kind is list:
        return len(left) == len(right) and all(map(identical, left, right))
    if kind is float:
        return pack("<d", left) == pack("<d", right)
    return bool(left == right)


def value_bytes(value: Any) -> int:
    """The encoded size of a value without its type and name."""
    kind = type(value)
    if kind is int:
        return 4
    if kind is str:
        return len(value.encode()) + 5
    if kind is dict:
        return len(encode(value))
    return len(bson.encode({"": value}, codec_options=OPTIONS)) - 7


def compute_diff(pre: dict[str, Any], post: dict[str, Any]) -> dict[str, Any] | None:
    """The diff from `pre` to `post`; {} if they are identical; None if the oplog records the complete `post` instead.

    The result is None if the diff with its overhead would be as large as `post` (reference §3.3, recorded cases).
    """
    diff, size = _document_diff(pre, post)
    if diff and size + ENTRY_OVERHEAD_BYTES >= len(encode(post)):
        return None
    return diff


def _document_diff(pre: dict[str, Any], post: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The diff of two documents and its encoded size; {} if identical."""
    names, post_names = list(pre), list(post)
    updates: dict[str, Any] = {}
    children: dict[str, Any] = {}
    removed: set[str] = set()
    size = _EMPTY_DOCUMENT_BYTES
    at, post_at = 0, 0
    while at < len(names) and post_at < len(post_names):
        name = names[at]
        at += 1
        if name != post_names[post_at]:
            removed.add(name)
            continue
        post_at += 1
        value = post[name]
        if identical(pre[name], value):
            continue
        child = _child_diff(pre[name], value)
        if child is None:
            updates[name] = value
        else:
            children["s" + name] = child[0]
            size += len(name.encode()) + 3 + child[1]
    inserts = {name: post[name] for name in post_names[post_at:]}
    deletes: dict[str, Any] = dict.fromkeys(names[at:], False)
    deletes.update(dict.fromkeys(sorted(removed.difference(inserts), key=str.encode), False))
    diff: dict[str, Any] = {}
    for section, fields in (("d", deletes), ("u", updates), ("i", inserts)):
        if fields:
            diff[section] = fields
            size += _SECTION_BYTES + sum(len(name.encode()) + 2 + _field_bytes(value) for name, value in fields.items())
    diff.update(children)
    return diff, size


def _array_diff(pre: list[Any], post: list[Any]) -> tuple[dict[str, Any], int]:
    diff: dict[str, Any] = {"a": True}
    size = _EMPTY_ARRAY_DIFF_BYTES
    if len(post) < len(pre):
        diff["l"] = len(post)
        size += _RESIZE_BYTES
    for index, value in enumerate(post):
        child = None
        if index < len(pre):
            if identical(pre[index], value):
                continue
            child = _child_diff(pre[index], value)
        key = f"{'u' if child is None else 's'}{index}"
        diff[key] = value if child is None else child[0]
        size += len(key) + 2 + (value_bytes(value) if child is None else child[1])
    return diff, size


def _child_diff(pre: Any, post: Any) -> tuple[dict[str, Any], int] | None:
    """The sub-diff of a field and its size; None if the complete new value is not longer."""
    if type(pre) is dict and type(post) is dict:
        child = _document_diff(pre, post)
    elif type(pre) is list and type(post) is list:
        child = _array_diff(pre, post)
    else:
        return None
    return None if child[1] >= value_bytes(post) else child


def _field_bytes(value: Any) -> int:
    return 1 if value is False else value_bytes(value)


def apply_diff(pre: dict[str, Any], diff: dict[str, Any]) -> dict[str, Any]:
    """The post-image. `pre` is not changed; values that the diff does not change are shared with it."""
    post = dict(pre)
    for section, content in diff.items():
        if section == "d":
            for name in content:
                post.pop(name, None)
        elif section == "u":
            post.update(content)
        elif section == "i":
            for name, value in content.items():
                post.pop(name, None)
                post[name] = value
        else:
            name = section[1:]
            post[name] = _apply_child(post.get(name), content)
    return post


def _apply_array(pre: list[Any], diff: dict[str, Any]) -> list[Any]:
    post = list(pre)
    for key, content in diff.items():
        if key == "a":
            continue
        if key == "l":
            _pad(post, content)
            del post[content:]
            continue
        index = int(key[1:])
        _pad(post, index + 1)
        post[index] = content if key[0] == "u" else _apply_child(post[index], content)
    return post


def _apply_child(pre: Any, diff: dict[str, Any]) -> Any:
    if diff.get("a") is True:
        return _apply_array(pre if type(pre) is list else [], diff)
    return apply_diff(pre if type(pre) is dict else {}, diff)


def _pad(array: list[Any], length: int) -> None:
    """Fill the array with nulls up to `length`, as an update does that writes past the end."""
    if len(array) < length:
        array.extend([None] * (length - len(array)))
