"""The contract of the leaves of an update: one operator on one field.

Rule: a leaf is parsed once, holds no state, and never changes a value in place. `change` takes the field's old value
(MISSING if there is none) and returns the new value, MISSING to remove the field, NO_OP to leave it, or `Appended`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from headrace.query.update.update import UpdateContext

FieldRef = tuple[str | int, ...]
"""The path of a field: names, and ints for indexes in existing arrays."""


def dotted(path: FieldRef) -> str:
    """A path as text."""
    return ".".join(map(str, path))


class NoOp:
    """The type of `NO_OP`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NO_OP"


NO_OP: Final = NoOp()
"""A leaf returns this if it does not change the field."""


@dataclass(frozen=True, slots=True)
class Appended:
    """An array that grew by `count` values at its end. The oplog records only the new values."""

    array: list[Any]
    count: int


class ApplyParams:
    """The input of an update's leaves in one run: the document before the update (for messages) and the context."""

    __slots__ = ("context", "document")

    def __init__(self, document: dict[str, Any], context: UpdateContext) -> None:
        self.document = document
        self.context = context


class UpdateLeafNode:
    """One operator on one path.

    `creates`: a missing field is created (`change` is called with MISSING). If False, a missing field is ignored, but a
    path that is not viable is an error unless `lenient`. `insert_only`: the leaf applies only when an upsert inserts.
    `depth` is the number of levels of objects and arrays that the new value may add below the field.
    """

    __slots__ = ("depth",)
    creates: ClassVar[bool] = True
    insert_only: ClassVar[bool] = False
    lenient: ClassVar[bool] = False

    def __init__(self) -> None:
        self.depth = 0

    def change(self, old: Any, params: ApplyParams, path: FieldRef) -> Any:
        """The new value. `path` is the field's path, for messages. Raises 2 or 14 for an old value of a wrong type."""
        raise NotImplementedError


def depth(value: Any) -> int:
    """The nesting depth of objects and arrays in a value; 0 for a scalar."""
    kind = type(value)
    if kind is not dict and kind is not list:
        return 0
    items = value if kind is list else value.values()
    if _CONTAINERS.isdisjoint(map(type, items)):
        return 1
    return 1 + max(map(depth, items))


_CONTAINERS: Final = frozenset({dict, list})
