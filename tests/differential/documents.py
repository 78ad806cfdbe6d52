"""Random values and documents: every BSON type that can be stored, few paths, and values that often meet again."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.values.bson import encode

if TYPE_CHECKING:
    from tests.differential.places import Places

COMMON: Final[list[Any]] = [None, 0, 1, 2, 3, 4, 5, "a", "ab", "b"]
RARE: Final[list[Any]] = [
    -1, 1.0, 1.5, 2.5, -0.0, 0.0, Int64(2), Int64(2**53 + 1), float(2**53), Int64(-(2**63)), Decimal128("1.5"),
    Decimal128("2.00"), Decimal128("0.1"), 0.1, Decimal128("-0"), float("nan"), Decimal128("NaN"), float("inf"),
    float("-inf"), Decimal128("Infinity"), Decimal128("1E+400"), 1e300, "", "A", "abc", "a\0b", "a\0", "B", "á", "å",
    "Å", "9", "10", "\u20ac", "\U0001f600", "x" * 600, "x" * 600 + "y", True, False, ObjectId("0" * 24),
    ObjectId("f" * 24),
    DatetimeMS(5), DatetimeMS(-5), DatetimeMS(0), Timestamp(0, 5), Timestamp(5, 0), b"", b"\0", b"ab",
    Binary(b"ab", 5), Regex("a"), Regex("^a", "i"), MinKey(), MaxKey(), Code("f"), {},
]  # fmt: skip
LONG: Final[list[Any]] = ["x" * 600, "x" * 600 + "y", "x" * 600 + "y", "x" * 470]
"""Values around the length at which keys are cut."""
TEXTS: Final[list[Any]] = ["a", "A", "á", "b", "B", "9", "10", None]
FIELDS: Final = ["a", "b", "c"]
INNER_FIELDS: Final = ["b", "c"]
PATHS: Final = ["a", "a", "a", "b", "b", "c", "a.b", "a.b", "a.c", "b.b", "b.c", "c.b"]
ODD_PATHS: Final = ["a.0", "a.0.b", "a.b.c", "d", "_id", "_id", "a.b.0"]


class Values:
    """A source of random values; documents without arrays are a case of their own, since their indexes do more."""

    def __init__(self, random: Random, *, arrays: bool, nested: bool, rare: float) -> None:
        """`rare`: the share of scalars that are of a rare type."""
        self.random = random
        self._arrays = arrays
        self._nested = nested
        self._rare = rare
        self._long = random.random() < 0.25
        self.collated = 0.5 if random.random() < 0.15 else 0.05
        """The share of questions with a collation; where it is large, there are texts for it."""
        self._common = TEXTS if self.collated > 0.1 else [None, *random.sample(COMMON, random.choice([3, 4, 9]))]
        self.paths = random.sample(sorted(set(PATHS)), random.choice([1, 2, 2, 3])) if random.random() < 0.8 else PATHS
        """The paths of filters and indexes: few, so that they are of the same fields."""
        self.places: Places | None = None

    def scalar(self) -> Any:
        """Return a value that is no array and holds none."""
        if self._long and self.random.random() < 0.35:
            return self.random.choice(LONG)
        return self.random.choice(RARE if self.random.random() < self._rare else self._common)

    def scalar_of_order(self) -> Any:
        """Return a value that can be an end of a range."""
        if self.random.random() < 0.6:
            return self.random.choice([0, 1, 2, 3, 4])
        value = self.scalar()
        return 1 if value is None or type(value) is Regex else value

    def value(self, depth: int = 2) -> Any:
        """Return a value of any kind that this source has."""
        dice = self.random.random()
        if depth and self._nested and dice < 0.2:
            return self.inner(depth - 1)
        if depth and self._arrays and dice < 0.4:
            return [self.value(depth - 1) for _ in range(self.random.choice([0, 1, 1, 2, 2, 3]))]
        return self.scalar()

    def inner(self, depth: int) -> dict[str, Any]:
        """Return an object inside a document."""
        names = self.random.sample(INNER_FIELDS, self.random.choice([0, 1, 1, 2]))
        return {name: self.value(depth) for name in names}

    def document(self, number: int) -> dict[str, Any]:
        """Return a document with a number as `_id`, mostly."""
        names = self.random.sample(FIELDS, self.random.choice([0, 1, 2, 2, 3, 3]))
        document = {"_id": self.identifier(number), **{name: self.value() for name in names}}
        return document if self.places is None else {**document, "at": self.places.value()}

    def identifier(self, number: int) -> Any:
        """Return an `_id`."""
        if self.random.random() > 0.15:
            return number
        value = self.scalar()
        return number if type(value) is Regex else value

    def path(self) -> str:
        """Return the path of a field."""
        return self.random.choice(ODD_PATHS if self.random.random() < 0.12 else self.paths)


def raw(document: dict[str, Any]) -> bytes:
    """Return what tells two documents apart: types, the sign of zero and the order of fields count."""
    return encode(document)


def raw_unordered(document: dict[str, Any]) -> bytes:
    """Return the same, but for the order of the top-level fields: that of a covered projection is the key's."""
    return encode(dict(sorted(document.items())))
