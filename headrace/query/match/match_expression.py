"""Match expressions: the tree of a parsed filter, optimized and ordered as MongoDB does, then compiled to closures.

    filter --parse--> MatchExpression --optimized()--> MatchExpression --compiled()--> Callable[[document], bool]

Rule: sibling conditions are evaluated in the order of `MatchType`, then of their paths. Clients can see this order:
a condition that is false prevents the error of an `$expr` after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, ClassVar

from headrace.values.bson import MISSING
from headrace.values.paths import ValueTest, any_value, located_values, split_path

DocumentTest = Callable[[dict[str, Any]], bool]
MatchResult = tuple[bool, str | None]
"""Whether a document matches, and the array index for the positional operator `$` (None if no array was entered)."""


class MatchType(IntEnum):
    """The type of a match expression, in the order in which siblings are evaluated."""

    AND = 0
    OR = 1
    ELEM_MATCH_OBJECT = 2
    ELEM_MATCH_VALUE = 3
    SIZE = 4
    EQ = 5
    LTE = 6
    LT = 7
    GT = 8
    GTE = 9
    REGEX = 10
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
    GEO = 21
    GEO_NEAR = 22
    EXPRESSION = 23
    ALWAYS_FALSE = 24
    ALWAYS_TRUE = 25
    JSON_SCHEMA = 26
    TEXT = 27


class MatchExpression:
    """One condition of a filter. `compiled` tests documents, `single` one value (inside `$elemMatch`)."""

    __slots__ = ()

    @property
    def order(self) -> tuple[Any, ...]:
        """The sort key of the expression among its siblings: (type, path, keys of its children)."""
        raise NotImplementedError

    def compiled(self) -> DocumentTest:
        """A function that returns whether a document matches."""
        raise NotImplementedError

    def single(self) -> ValueTest:
        """A function that returns whether one array element matches; arrays within the element are not entered."""
        raise NotImplementedError

    def find_match(self, document: dict[str, Any]) -> MatchResult:
        """Whether the document matches, with the index for the positional operator. Slower than `compiled`."""
        return self.compiled()(document), None

    def fields(self) -> set[str] | None:
        """Names of the top-level fields that the expression reads; None if it may read any."""
        return set()

    def optimized(self) -> MatchExpression:
        """An equivalent expression: nested lists flattened, constant children removed, siblings sorted by `order`."""
        return self


@dataclass(frozen=True, slots=True)
class AlwaysBoolean(MatchExpression):
    """A condition that is true, or false, for every document."""

    value: bool

    @property
    def order(self) -> tuple[Any, ...]:
        return (MatchType.ALWAYS_TRUE if self.value else MatchType.ALWAYS_FALSE, "", ())

    def compiled(self) -> DocumentTest:
        value = self.value
        return lambda document: value

    def single(self) -> ValueTest:
        return self.compiled()


@dataclass(frozen=True, slots=True)
class LeafMatchExpression(MatchExpression):
    """A test of the values that a path reaches.

    `wanted` is the right-hand side of an equality (otherwise MISSING): upserts and lookups by `_id` use it. `argument`
    is the right-hand side of a comparison or `$in`, for code that does not compile the tree to closures.
    """

    kind: MatchType
    path: str
    test: ValueTest
    enter_last: bool = True
    wanted: Any = MISSING
    argument: Any = MISSING

    @property
    def order(self) -> tuple[Any, ...]:
        return (self.kind, self.path, ())

    def compiled(self) -> DocumentTest:
        return any_value(split_path(self.path), self.test, enter_last=self.enter_last)

    def single(self) -> ValueTest:
        return self.test

    def find_match(self, document: dict[str, Any]) -> MatchResult:
        for value, index in located_values(document, split_path(self.path), enter_last=self.enter_last):
            if self.test(value):
                return True, index
        return False, None

    def fields(self) -> set[str] | None:
        return {split_path(self.path)[0]}


@dataclass(frozen=True, slots=True)
class ElemMatchExpression(MatchExpression):
    """`$elemMatch`: some element of the array matches `inner`, as an object or (`by_value`) as a value."""

    path: str
    inner: MatchExpression
    by_value: bool

    @property
    def order(self) -> tuple[Any, ...]:
        return (
            MatchType.ELEM_MATCH_VALUE if self.by_value else MatchType.ELEM_MATCH_OBJECT,
            self.path,
            (self.inner.order,),
        )

    def element(self) -> ValueTest:
        """A function that returns whether one element matches `inner`."""
        if self.by_value:
            return self.inner.single()
        inner = self.inner.compiled()

        def test(item: Any) -> bool:
            if type(item) is dict:
                return inner(item)
            return type(item) is list and inner({str(index): value for index, value in enumerate(item)})

        return test

    def single(self) -> ValueTest:
        element = self.element()
        return lambda value: type(value) is list and any(map(element, value))

    def compiled(self) -> DocumentTest:
        return any_value(split_path(self.path), self.single(), enter_last=False)

    def find_match(self, document: dict[str, Any]) -> MatchResult:
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

    def optimized(self) -> MatchExpression:
        inner = self.inner.optimized()
        if inner == AlwaysBoolean(False):
            return inner
        return ElemMatchExpression(self.path, inner, self.by_value)


@dataclass(frozen=True, slots=True)
class Junction(MatchExpression):
    """A condition on several children."""

    children: tuple[MatchExpression, ...]
    kind: ClassVar[MatchType]

    @property
    def order(self) -> tuple[Any, ...]:
        return (self.kind, "", tuple(child.order for child in self.children))

    def compiled(self) -> DocumentTest:
        return self._joined([child.compiled() for child in self.children])

    def single(self) -> ValueTest:
        return self._joined([child.single() for child in self.children])

    def _joined(self, tests: list[ValueTest]) -> ValueTest:
        raise NotImplementedError

    def fields(self) -> set[str] | None:
        names: set[str] = set()
        for child in self.children:
            fields = child.fields()
            if fields is None:
                return None
            names |= fields
        return names

    def _simplified(self, decisive: AlwaysBoolean) -> MatchExpression:
        """The junction without nested ones of its kind and without constants. `decisive`: the child that decides it."""
        neutral = AlwaysBoolean(not decisive.value)
        children = [child for child in _flat(self.children, type(self)) if child != neutral]
        if any(child == decisive for child in children):
            return decisive
        if len(children) < 2:
            return children[0] if children else neutral
        return type(self)(_ordered(children))


@dataclass(frozen=True, slots=True)
class And(Junction):
    """`$and`: every child matches."""

    kind = MatchType.AND

    def _joined(self, tests: list[ValueTest]) -> ValueTest:
        return _all(tests)

    def find_match(self, document: dict[str, Any]) -> MatchResult:
        index: str | None = None
        for child in self.children:
            matched, child_index = child.find_match(document)
            if not matched:
                return False, None
            index = child_index if child_index is not None else index
        return True, index

    def optimized(self) -> MatchExpression:
        return self._simplified(AlwaysBoolean(False))


@dataclass(frozen=True, slots=True)
class Or(Junction):
    """`$or`: at least one child matches.

    It sets an index for the positional operator only if all children are equalities of one path, as `$in` would.
    """

    kind = MatchType.OR

    def _joined(self, tests: list[ValueTest]) -> ValueTest:
        return _any(tests)

    def find_match(self, document: dict[str, Any]) -> MatchResult:
        leaves = [child for child in self.children if isinstance(child, LeafMatchExpression)]
        equalities = [leaf for leaf in leaves if leaf.wanted is not MISSING]
        if len(equalities) == len(self.children) and len({leaf.path for leaf in equalities}) == 1:
            return replace(equalities[0], test=self.single()).find_match(document)
        return MatchExpression.find_match(self, document)

    def optimized(self) -> MatchExpression:
        return self._simplified(AlwaysBoolean(True))


@dataclass(frozen=True, slots=True)
class Nor(Junction):
    """`$nor`: no child matches."""

    kind = MatchType.NOR

    def _joined(self, tests: list[ValueTest]) -> ValueTest:
        return _negated(_any(tests))

    def optimized(self) -> MatchExpression:
        return Nor(_ordered([child.optimized() for child in self.children]))


@dataclass(frozen=True, slots=True)
class Not(MatchExpression):
    """`$not`, and the negated operators `$ne`, `$nin` and `$exists: false`."""

    inner: MatchExpression

    @property
    def order(self) -> tuple[Any, ...]:
        return (MatchType.NOT, "", (self.inner.order,))

    def compiled(self) -> DocumentTest:
        return _negated(self.inner.compiled())

    def single(self) -> ValueTest:
        return _negated(self.inner.single())

    def fields(self) -> set[str] | None:
        return self.inner.fields()

    def optimized(self) -> MatchExpression:
        inner = self.inner.optimized()
        if isinstance(inner, AlwaysBoolean):
            return AlwaysBoolean(not inner.value)
        return Not(inner)


@dataclass(frozen=True, slots=True)
class DocumentMatchExpression(MatchExpression):
    """A condition on the document as such: `$expr`, `$jsonSchema`. `names` are the fields it reads (None: any)."""

    kind: MatchType
    test: DocumentTest
    names: frozenset[str] | None = None

    @property
    def order(self) -> tuple[Any, ...]:
        return (self.kind, "", ())

    def compiled(self) -> DocumentTest:
        return self.test

    def single(self) -> ValueTest:
        return lambda value: type(value) is dict and self.test(value)

    def fields(self) -> set[str] | None:
        return None if self.names is None else set(self.names)


def _flat(children: tuple[MatchExpression, ...], kind: type[Junction]) -> Iterator[MatchExpression]:
    """The optimized children. Children of nested lists of the same type are inlined."""
    for child in children:
        simple = child.optimized()
        if isinstance(simple, kind):
            yield from simple.children
        else:
            yield simple


def _ordered(children: list[MatchExpression]) -> tuple[MatchExpression, ...]:
    return tuple(sorted(children, key=lambda child: child.order))


def _negated(test: ValueTest) -> ValueTest:
    return lambda value: not test(value)


def _all(tests: list[ValueTest]) -> ValueTest:
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


def _any(tests: list[ValueTest]) -> ValueTest:
    if len(tests) == 1:
        return tests[0]

    def some(value: Any) -> bool:
        for test in tests:  # noqa: SIM110  (a generator would cost more than most tests)
            if test(value):
                return True
        return False

    return some
