"""The tree a filter is parsed into, simplified and ordered as MongoDB's, then compiled to closures.

    filter --parse--> Node --simplified()--> Node --compiled()--> Callable[[document], bool]

Rule: conditions that stand side by side are tried in the order of `Kind`, then of their paths. It
shows: a condition that fails spares the client the error of an `$expr` after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from headrace.query.match.value_tests import Test
from headrace.values.bson import MISSING
from headrace.values.paths import any_value, located_values, split_path

DocumentTest = Callable[[dict[str, Any]], bool]
Found = tuple[bool, str | None]
"""Whether a document matches, and the array index that the positional operator stands for."""


class Kind(IntEnum):
    """What a node is, in the order in which siblings are tried."""

    AND = 0
    OR = 1
    ELEMENT_OBJECT = 2
    ELEMENT_VALUE = 3
    SIZE = 4
    EQUAL = 5
    LESS_OR_EQUAL = 6
    LESS = 7
    GREATER = 8
    GREATER_OR_EQUAL = 9
    PATTERN = 10
    MOD = 11
    EXISTS = 12
    IN = 13
    BITS_ALL_SET = 14
    BITS_ALL_CLEAR = 15
    BITS_ANY_SET = 16
    BITS_ANY_CLEAR = 17
    NOT = 18
    NOR = 19
    TYPE = 20
    EXPRESSION = 21
    ALWAYS_FALSE = 22
    ALWAYS_TRUE = 23
    SCHEMA = 24


class Node:
    """One condition. `compiled` tests documents; `single` tests one value (inside `$elemMatch`)."""

    __slots__ = ()

    @property
    def order(self) -> tuple[Any, ...]:
        """Where the node is tried among its siblings."""
        raise NotImplementedError

    def compiled(self) -> DocumentTest:
        """A function telling whether a document fulfils the condition."""
        raise NotImplementedError

    def single(self) -> Test:
        """A function telling whether one array element does, not looking into arrays within it."""
        raise NotImplementedError

    def find(self, document: dict[str, Any]) -> Found:
        """As `compiled`, with the index for the positional operator; slower."""
        return self.compiled()(document), None

    def fields(self) -> set[str] | None:
        """Top-level fields the node looks at; None if it may look at any."""
        return set()

    def simplified(self) -> Node:
        """An equivalent node with lists flattened, trivial ones dropped and siblings in order."""
        return self


@dataclass(frozen=True, slots=True)
class Always(Node):
    """A condition every document, or none, fulfils."""

    value: bool

    @property
    def order(self) -> tuple[Any, ...]:
        return (Kind.ALWAYS_TRUE if self.value else Kind.ALWAYS_FALSE, "", ())

    def compiled(self) -> DocumentTest:
        value = self.value
        return lambda document: value

    def single(self) -> Test:
        return self.compiled()


@dataclass(frozen=True, slots=True)
class Leaf(Node):
    """A test of the values that a path reaches; `wanted` is the value of an equality, for upserts and lookups.

    `argument` is what an order or `$in` compares with, for those who compile the tree to something else.
    """

    kind: Kind
    path: str
    test: Test
    enter_last: bool = True
    wanted: Any = MISSING
    argument: Any = MISSING

    @property
    def order(self) -> tuple[Any, ...]:
        return (self.kind, self.path, ())

    def compiled(self) -> DocumentTest:
        return any_value(split_path(self.path), self.test, enter_last=self.enter_last)

    def single(self) -> Test:
        return self.test

    def find(self, document: dict[str, Any]) -> Found:
        for value, index in located_values(document, split_path(self.path), enter_last=self.enter_last):
            if self.test(value):
                return True, index
        return False, None

    def fields(self) -> set[str] | None:
        return {split_path(self.path)[0]}


@dataclass(frozen=True, slots=True)
class ElementMatch(Node):
    """`$elemMatch`: one element of the array fulfils `inner`, as an object or (`by_value`) as a value."""

    path: str
    inner: Node
    by_value: bool

    @property
    def order(self) -> tuple[Any, ...]:
        return (Kind.ELEMENT_VALUE if self.by_value else Kind.ELEMENT_OBJECT, self.path, (self.inner.order,))

    def element(self) -> Test:
        """A function telling whether one element fulfils the condition."""
        if self.by_value:
            return self.inner.single()
        inner = self.inner.compiled()

        def test(item: Any) -> bool:
            if type(item) is dict:
                return inner(item)
            return type(item) is list and inner({str(index): value for index, value in enumerate(item)})

        return test

    def single(self) -> Test:
        element = self.element()
        return lambda value: type(value) is list and any(map(element, value))

    def compiled(self) -> DocumentTest:
        return any_value(split_path(self.path), self.single(), enter_last=False)

    def find(self, document: dict[str, Any]) -> Found:
        element = self.element()
        for value, outer in located_values(document, split_path(self.path), enter_last=False):
            if type(value) is not list:
                continue
            for index, item in enumerate(value):
                if element(item):
                    return True, outer or str(index)
        return False, None

    def fields(self) -> set[str] | None:
        return {split_path(self.path)[0]}

    def simplified(self) -> Node:
        inner = self.inner.simplified()
        if inner == Always(False):
            return inner
        return ElementMatch(self.path, inner, self.by_value)


@dataclass(frozen=True, slots=True)
class Both(Node):
    """`$and`: every condition."""

    parts: tuple[Node, ...]

    @property
    def order(self) -> tuple[Any, ...]:
        return (Kind.AND, "", tuple(part.order for part in self.parts))

    def compiled(self) -> DocumentTest:
        return _all([part.compiled() for part in self.parts])

    def single(self) -> Test:
        return _all([part.single() for part in self.parts])

    def find(self, document: dict[str, Any]) -> Found:
        index: str | None = None
        for part in self.parts:
            found, at = part.find(document)
            if not found:
                return False, None
            index = at if at is not None else index
        return True, index

    def fields(self) -> set[str] | None:
        return _fields_of(self.parts)

    def simplified(self) -> Node:
        parts = [part for part in _flat(self.parts, Both) if part != Always(True)]
        if Always(False) in parts:
            return Always(False)
        if len(parts) < 2:
            return parts[0] if parts else Always(True)
        return Both(_ordered(parts))


@dataclass(frozen=True, slots=True)
class Either(Node):
    """`$or`: one condition or more. It tells no index for the positional operator."""

    parts: tuple[Node, ...]

    @property
    def order(self) -> tuple[Any, ...]:
        return (Kind.OR, "", tuple(part.order for part in self.parts))

    def compiled(self) -> DocumentTest:
        return _any([part.compiled() for part in self.parts])

    def single(self) -> Test:
        return _any([part.single() for part in self.parts])

    def fields(self) -> set[str] | None:
        return _fields_of(self.parts)

    def simplified(self) -> Node:
        parts = [part for part in _flat(self.parts, Either) if part != Always(False)]
        if Always(True) in parts:
            return Always(True)
        if len(parts) < 2:
            return parts[0] if parts else Always(False)
        return Either(_ordered(parts))


@dataclass(frozen=True, slots=True)
class Neither(Node):
    """`$nor`: none of the conditions."""

    parts: tuple[Node, ...]

    @property
    def order(self) -> tuple[Any, ...]:
        return (Kind.NOR, "", tuple(part.order for part in self.parts))

    def compiled(self) -> DocumentTest:
        return _negated(_any([part.compiled() for part in self.parts]))

    def single(self) -> Test:
        return _negated(_any([part.single() for part in self.parts]))

    def fields(self) -> set[str] | None:
        return _fields_of(self.parts)

    def simplified(self) -> Node:
        return Neither(_ordered([part.simplified() for part in self.parts]))


@dataclass(frozen=True, slots=True)
class Negation(Node):
    """`$not`, and what negates by its name: `$ne`, `$nin`, `$exists: false`."""

    inner: Node

    @property
    def order(self) -> tuple[Any, ...]:
        return (Kind.NOT, "", (self.inner.order,))

    def compiled(self) -> DocumentTest:
        return _negated(self.inner.compiled())

    def single(self) -> Test:
        return _negated(self.inner.single())

    def fields(self) -> set[str] | None:
        return self.inner.fields()

    def simplified(self) -> Node:
        inner = self.inner.simplified()
        if isinstance(inner, Always):
            return Always(not inner.value)
        return Negation(inner)


@dataclass(frozen=True, slots=True)
class Computed(Node):
    """A condition over the whole document: `$expr`, `$jsonSchema`. `names` are the fields it reads (None: any)."""

    kind: Kind
    test: DocumentTest
    names: frozenset[str] | None = None

    @property
    def order(self) -> tuple[Any, ...]:
        return (self.kind, "", ())

    def compiled(self) -> DocumentTest:
        return self.test

    def single(self) -> Test:
        return lambda value: type(value) is dict and self.test(value)

    def fields(self) -> set[str] | None:
        return None if self.names is None else set(self.names)


def _flat(parts: tuple[Node, ...], kind: type[Both] | type[Either]) -> Iterator[Node]:
    """The parts simplified, with those of nested lists of the same kind taken in."""
    for part in parts:
        simple = part.simplified()
        if isinstance(simple, kind):
            yield from simple.parts
        else:
            yield simple


def _ordered(parts: list[Node]) -> tuple[Node, ...]:
    return tuple(sorted(parts, key=lambda part: part.order))


def _fields_of(parts: tuple[Node, ...]) -> set[str] | None:
    found: set[str] = set()
    for part in parts:
        fields = part.fields()
        if fields is None:
            return None
        found |= fields
    return found


def _negated(test: Test) -> Test:
    return lambda value: not test(value)


def _all(tests: list[Test]) -> Test:
    if len(tests) == 1:
        return tests[0]
    if len(tests) == 2:
        first, second = tests
        return lambda value: first(value) and second(value)

    def every(value: Any) -> bool:
        for test in tests:  # noqa: SIM110  (a generator would cost more than most tests)
            if not test(value):
                return False
        return True

    return every


def _any(tests: list[Test]) -> Test:
    if len(tests) == 1:
        return tests[0]

    def some(value: Any) -> bool:
        for test in tests:  # noqa: SIM110  (a generator would cost more than most tests)
            if test(value):
                return True
        return False

    return some
