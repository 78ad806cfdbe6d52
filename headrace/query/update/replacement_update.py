"""Replacement updates, and their rule for `_id`, which pipeline updates share."""

from __future__ import annotations

from typing import Any

from bson import Timestamp

from headrace import limits
from headrace.errors import CommandError
from headrace.query.diff import identical
from headrace.query.update.leaf_node import depth
from headrace.query.update.message_text import element_text
from headrace.query.update.update import REPLACED, Applied, Update, UpdateContext
from headrace.values.bson import MISSING, encode, value_size
from headrace.values.order import equal


class Replacement(Update):
    """A new document. It gets the old `_id` if it has none. A top-level Timestamp(0, 0) becomes the cluster time.

    Only a replacement with an `_id` can be a no-op: MongoDB compares the document as the client sent it.
    """

    __slots__ = ("_document", "_stamped")
    kind = "replacement"

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._stamped = any(value == Timestamp(0, 0) for value in document.values() if type(value) is Timestamp)

    def apply_raw(self, document: bytes, context: UpdateContext) -> tuple[bytes, bytes] | None:
        if self._stamped or "_id" in self._document or not document.startswith(b"_id\0", 5):
            return None
        identity = document[4 : 9 + value_size(document[4], document, 9)]
        fields = encode(self._document)[4:]
        new = b"".join(((4 + len(identity) + len(fields)).to_bytes(4, "little"), identity, fields))
        return new, new

    def apply(self, document: dict[str, Any], context: UpdateContext) -> Applied:
        new = self._document
        if self._stamped:
            new = {name: context.timestamp if _is_blank(name, value) else value for name, value in new.items()}
        if identical(document, new):
            return Applied(document, None)
        return Applied(with_old_id(document, new), REPLACED)


def _is_blank(name: str, value: Any) -> bool:
    return type(value) is Timestamp and name != "_id" and value == Timestamp(0, 0)


def parse_replacement(document: dict[str, Any]) -> Replacement:
    """The replacement. Raises 52 for a top-level name with a dollar sign, 15 for a document nested too deeply."""
    for name in document:
        if name.startswith("$"):
            raise dollar_prefixed(name)
    check_depth(document)
    return Replacement(document)


def dollar_prefixed(name: str) -> CommandError:
    """The error of a top-level field that an update may not set."""
    return CommandError(
        52,
        f"The dollar ($) prefixed field '{name}' in '{name}' is not allowed in the context of an update's "
        "replacement document. Consider using an aggregation pipeline with $replaceWith.",
    )


def check_depth(document: dict[str, Any]) -> None:
    """Raise 15 for a document nested deeper than `limits.NESTING_MAX`. The document itself is level 0."""
    if depth(document) - 1 > limits.NESTING_MAX:
        raise CommandError(15, f"Document exceeds maximum nesting depth of {limits.NESTING_MAX}")


def with_old_id(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The new document with `_id` first: its own `_id` or the old one. Raises 66 if the `_id` changed."""
    before, after = old.get("_id", MISSING), new.get("_id", MISSING)
    if before is MISSING and after is MISSING:
        return new
    if before is not MISSING and after is not MISSING and not equal(before, after):
        raise CommandError(
            66,
            "After applying the update, the (immutable) field '_id' was found to have been altered to "
            f"{element_text('_id', after)}",
        )
    if after is not MISSING and next(iter(new)) == "_id":
        return new
    return {"_id": before if after is MISSING else after, **{key: value for key, value in new.items() if key != "_id"}}
