"""The tree of a parsed expression: constants, paths and calls. Constants are folded as in MongoDB.

Rule: whether a constant subexpression is evaluated at parse time decides which errors a client sees (even from branches
that are never taken), so folding follows the server. A call folds if its operator does and all its operands are
constant. Associative operators merge adjacent constants. Commutative operators move constants last.

    value --parse--> Expression --optimized()--> Expression --compiled()--> Callable[[Env], value]
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from headrace import limits
from headrace.errors import CommandError
from headrace.time_limit import limited
from headrace.values.bson import MISSING

FOLDING_PREFIX: Final = "Failed to optimize pipeline :: caused by :: "
_NO_CONSTANTS: Final[Mapping[str, Any]] = {}


class Env:
    """The environment of an evaluation: the document, and the values of `$$` variables by name (without `$$`).

    `variables` need not have ROOT, CURRENT or REMOVE. An evaluation does not change the environment.
    """

    __slots__ = ("root", "variables")

    def __init__(self, root: Any, variables: Mapping[str, Any] = _NO_CONSTANTS) -> None:
        self.root = root
        self.variables = variables


Evaluate: TypeAlias = Callable[[Env], Any]


@dataclass(frozen=True, slots=True)
class ParseContext:
    """The names that an expression may refer to, known at parse time.

    `constants` are variables with the same value for the complete command (`let`, NOW, CLUSTER_TIME, $redact's KEEP,
    ...). They are folded. `defined` are names bound at evaluation time through `Env.variables`. `rebound_current` means
    that CURRENT is one of these, so that "$a" is not a field of the root. `random_source` gives the numbers of $rand.
    `metadata` has the arguments of `$meta` for which documents have a value.
    """

    constants: Mapping[str, Any] = field(default_factory=dict)
    defined: frozenset[str] = frozenset()
    collation: Any = None
    rebound_current: bool = False
    random_source: Callable[[], float] = random.random
    metadata: Mapping[str, Callable[[], Evaluate]] = field(default_factory=dict)

    def binding(self, *names: str) -> ParseContext:
        """The context of a subexpression of an expression that binds `names`."""
        rebound = self.rebound_current or "CURRENT" in names
        return replace(self, defined=self.defined | set(names), rebound_current=rebound)


def less_bound(variables: Mapping[str, Any], bound: Mapping[str, Any]) -> Mapping[str, Any]:
    """The variables without those that are bound at evaluation time."""
    if bound.keys().isdisjoint(variables.keys()):  # iterates over the smaller one
        return variables
    left = copy(variables)  # the copy may compute more variables on demand
    assert isinstance(left, dict)
    for name in bound:
        left.pop(name, None)
    return left


def with_more(variables: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The variables, and more of them."""
    copied = copy(variables)  # the copy may compute more variables on demand
    assert isinstance(copied, dict)
    copied.update(more)
    return copied


class Expression:
    """A node of a parsed expression."""

    __slots__ = ()

    def optimized(self) -> Expression:
        """The node with constant subexpressions evaluated. Raises the `CommandError` of their evaluation."""
        return self

    def compiled(self) -> Evaluate:
        """Return a function of an `Env` that returns the value, or MISSING if there is none."""
        raise NotImplementedError

    def fields(self) -> set[str] | None:
        """Names of the top-level fields of the root document that the node may read; None if it may read any."""
        return set()


_LONG: Final = frozenset({bytes, list, str})


class Constant(Expression):
    """A value that is the same for every document."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def compiled(self) -> Evaluate:
        value = self.value
        return lambda env: value


NULL: Final = Constant(None)
ABSENT: Final = Constant(MISSING)


@dataclass(frozen=True, slots=True)
class Operator:
    """How a call is optimized and compiled.

    `make` takes a closure for each operand (None for an absent optional operand) and returns the closure of the call.
    `folds`: a call with only constant operands is evaluated at parse time. `associative_alone` is False if a single
    operand has another meaning (the elements of an array). Such a call is neither merged nor flattened. `simplify` is
    applied to a call after its operands are optimized, unless it became a constant.
    """

    name: str
    make: Callable[..., Evaluate]
    folds: bool = True
    associative: bool = False
    commutative: bool = False
    associative_alone: bool = True
    simplify: Callable[[Call], Expression] | None = None


class Call(Expression):
    """An operator applied to operands. An absent optional operand is None."""

    __slots__ = ("operands", "operator")

    def __init__(self, operator: Operator, operands: Sequence[Expression | None]) -> None:
        self.operator = operator
        self.operands = list(operands)

    def compiled(self) -> Evaluate:
        return self.operator.make(*[None if o is None else o.compiled() for o in self.operands])

    def fields(self) -> set[str] | None:
        names: set[str] = set()
        for operand in self.operands:
            if operand is not None:
                fields = operand.fields()
                if fields is None:
                    return None
                names |= fields
        return names

    def optimized(self) -> Expression:
        node: Expression = Call(self.operator, [None if o is None else o.optimized() for o in self.operands])
        if self.operator.folds and isinstance(node, Call):
            node = node.with_constants_folded()
        if isinstance(node, Call) and self.operator.simplify is not None:
            return self.operator.simplify(node)
        return node

    @property
    def is_associative(self) -> bool:
        """Whether the call may be merged with calls of the same operator among its operands."""
        return self.operator.associative and (self.operator.associative_alone or len(self.operands) > 1)

    def with_constants_folded(self) -> Expression:
        """This call, whose operands are optimized, as one constant or with its constants merged."""
        if all(o is None or type(o) is Constant for o in self.operands):
            constant = self.evaluated()
            # A paused command would hold a long constant.
            is_long = type(constant.value) in _LONG and len(constant.value) > limits.CONSTANT_LENGTH_MAX
            return self if is_long else constant
        if self.is_associative:
            return Call(self.operator, self._merged_operands())
        return self

    def evaluated(self) -> Constant:
        """The value of the call, whose operands must be constants. Raises the errors of the operator."""
        return Constant(self.compiled()(Env({})))

    def _merged_operands(self) -> list[Expression | None]:
        merged: list[Expression | None] = []
        constants: list[Expression | None] = []

        def flush() -> None:
            if len(constants) > 1:
                merged.append(Call(self.operator, constants).evaluated())
            else:
                merged.extend(constants)
            constants.clear()

        for operand in self._flattened():
            if type(operand) is Constant:
                constants.append(operand)
                continue
            if not self.operator.commutative:
                flush()
            merged.append(operand)
        flush()
        return merged

    def _flattened(self) -> list[Expression | None]:
        flat: list[Expression | None] = []
        for operand in self.operands:
            if isinstance(operand, Call) and operand.operator.name == self.operator.name and operand.is_associative:
                flat.extend(operand.operands)
            else:
                flat.append(operand)
        return flat


class CompiledExpression:
    """A parsed expression. Call it with an `Env` to get a value or MISSING. Hot loops use `evaluate`."""

    __slots__ = ("evaluate", "node")

    def __init__(self, node: Expression) -> None:
        self.node = node
        """The optimized tree."""
        self.evaluate: Evaluate = limited(node.compiled())

    def __call__(self, env: Env) -> Any:
        return self.evaluate(env)

    @property
    def is_constant(self) -> bool:
        """Whether the value is the same for every document."""
        return type(self.node) is Constant

    def fields(self) -> set[str] | None:
        """Names of the top-level fields of the root document that the expression may read; None if it may read any."""
        return self.node.fields()


def optimized(node: Expression) -> Expression:
    """The optimized node. An error of a constant subexpression is raised with the server's prefix."""
    try:
        return node.optimized()
    except CommandError as error:
        raise error.behind(FOLDING_PREFIX) from None
