"""What one operator does to one field: the contract of the leaves of an update.

Rule: a leaf is parsed once, holds no state, and never changes a value in place: `change` gets the field's old value
(MISSING if there is none) and gives the new one, MISSING to remove it, KEEP to leave it, or `Appended`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from bson import Timestamp
from bson.datetime_ms import DatetimeMS

Path = tuple[str | int, ...]
"""Where a field is: names, and int for places in arrays that exist."""


class Kept:
    """The type of `KEEP`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "KEEP"


KEEP: Final = Kept()
"""A leaf's answer when the field stays as it is."""


@dataclass(frozen=True, slots=True)
class Appended:
    """An array that only grew at its end, by `count` values: the oplog keeps just those."""

    array: list[Any]
    count: int


class Moment:
    """What a run of an update knows besides the field: the document (for messages) and the time."""

    __slots__ = ("document", "inserting", "now_ms", "timestamp")

    def __init__(self, document: dict[str, Any], now_ms: int, timestamp: Timestamp, inserting: bool) -> None:
        self.document = document
        self.now_ms = now_ms
        self.timestamp = timestamp
        self.inserting = inserting

    def now(self) -> DatetimeMS:
        return DatetimeMS(self.now_ms)


class Leaf:
    """One operator on one path.

    `creates`: a missing field is made (`change` is asked with MISSING). If not, nothing happens to it, but a path
    that could never lead anywhere is an error, unless `lenient`. `insert_only`: does nothing in a real update.
    `depth` is how many levels of objects and arrays the new value may add below the field.
    """

    __slots__ = ("depth",)
    creates: ClassVar[bool] = True
    insert_only: ClassVar[bool] = False
    lenient: ClassVar[bool] = False

    def __init__(self) -> None:
        self.depth = 0

    def change(self, old: Any, moment: Moment, path: Path) -> Any:
        """The new value; `path` is that of the field, for messages."""
        raise NotImplementedError


def depth(value: Any) -> int:
    """How many objects and arrays lie one within another in a value; 0 for a scalar."""
    if type(value) is dict:
        return 1 + max(map(depth, value.values()), default=0)
    if type(value) is list:
        return 1 + max(map(depth, value), default=0)
    return 0
