"""Applies the change in an update's oplog entry again: a diff, `{$v: 2, diff: {...}}`.

Rule: input from a client is checked before it is applied. A diff may have been applied already or may be older than the
document. Later entries then still correct the document, so that a replay of all entries gives the original documents.
"""

from __future__ import annotations

from typing import Any, Final

from headrace import limits
from headrace.errors import CommandError
from headrace.query.diff import apply_diff, identical
from headrace.query.update.replacement_update import Replacement, check_depth, with_old_id
from headrace.query.update.update import Applied, Diff, Update, UpdateContext
from headrace.query.update.update_parser import parse_update
from headrace.values.bson.to_string import to_string

_LENGTH_MAX: Final = limits.DOCUMENT_BYTES_MAX // 2
"""More elements than an array in a document can have."""
_DIGITS_MAX: Final = len(str(_LENGTH_MAX))


class DiffUpdate(Update):
    """A diff, and the entry that the oplog records when the diff is applied again."""

    __slots__ = ("_diff",)
    kind = "operators"

    def __init__(self, diff: dict[str, Any]) -> None:
        self._diff = diff

    def apply(self, document: dict[str, Any], context: UpdateContext) -> Applied:
        after = apply_diff(document, self._diff)
        if identical(document, after):
            return Applied(document, None)
        after = with_old_id(document, after)
        check_depth(after)
        return Applied(after, Diff({"$v": 2, "diff": self._diff}))


def parse_entry(change: dict[str, Any]) -> Update:
    """Parse the `o` of an update's entry: a diff, the operators of releases before 5.0, or a new document.

    Raises 9 for any other value, and 4772600 for an unknown version.
    """
    if "_id" in change or not next(iter(change), "").startswith("$"):
        return Replacement(change)
    version = change.get("$v", 1)
    if version == 2:
        diff = change.get("diff")
        _check_document_diff(diff)
        assert type(diff) is dict
        return DiffUpdate(diff)
    operators = {name: value for name, value in change.items() if name != "$v"}
    if version != 1 or not operators or not operators.keys() <= {"$set", "$unset"}:
        raise CommandError(4772600, f"Unsupported $v value in the oplog entry of an update: {to_string(version)}")
    return parse_update(operators)


def _check_document_diff(diff: Any) -> None:
    if type(diff) is not dict:
        raise _malformed("a diff must be a document")
    for section, content in diff.items():
        if section not in ("d", "u", "i") and not section.startswith("s"):
            raise _malformed(f"unknown section '{section}'")
        if type(content) is not dict:
            raise _malformed(f"section '{section}' must be a document")
        if section.startswith("s"):
            _check_child(content)


def _check_child(diff: dict[str, Any]) -> None:
    if diff.get("a") is not True:
        _check_document_diff(diff)
        return
    for name, content in diff.items():
        if name == "a":
            continue
        if name == "l":
            if type(content) is not int or not 0 <= content <= _LENGTH_MAX:
                raise _malformed("the length of an array must be a number of elements")
            continue
        digits = name[1:]
        if name[:1] not in ("u", "s") or not digits.isascii() or not digits.isdigit() or len(digits) > _DIGITS_MAX:
            raise _malformed(f"unknown section '{name}' of an array")
        if int(digits) >= _LENGTH_MAX:
            raise _malformed(f"the array is too long for '{name}'")
        if name[0] == "s":
            if type(content) is not dict:
                raise _malformed(f"section '{name}' must be a document")
            _check_child(content)


def _malformed(reason: str) -> CommandError:
    return CommandError(9, f"malformed diff in an oplog entry: {reason}")
