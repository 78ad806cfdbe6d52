"""The tree an expression is parsed into: constants, paths and calls; folded like MongoDB's, then compiled to closures.

Rule: whether a constant part is computed when the pipeline is parsed decides which errors a client sees (also
from branches never taken), so folding follows the server: a call folds if its operator does and all its
operands are constant; associative operators merge neighbouring constants, commutative ones move them last.

    value --parse--> Node --folded()--> Node --compiled()--> Callable[[Env], value]
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from headrace.errors import CommandError
from headrace.values.bson import MISSING

FOLDING_PREFIX: Final = "Failed to optimize pipeline :: caused by :: "
_NO_CONSTANTS: Final[Mapping[str, Any]] = {}


class Env:
    """What an expression is evaluated against: the document, and the values of `$$` variables by bare name.

    `variables` need not hold ROOT, CURRENT or REMOVE; it is read, never written, by an evaluation.
    """

    __slots__ = ("root", "variables")

    def __init__(self, root: Any, variables: Mapping[str, Any] = _NO_CONSTANTS) -> None:
        self.root = root
        self.variables = variables


Evaluate: TypeAlias = Callable[[Env], Any]


@dataclass(frozen=True, slots=True)
class ParseContext:
    """What an expression may refer to while it is parsed.

    `constants` are variables whose values are known for the whole command (`let`, NOW, CLUSTER_TIME, $redact's
    KEEP...): they fold. `defined` are names bound at evaluation time through `Env.variables`.
    `rebound_current` says that CURRENT is one of the latter, so that "$a" is not a field of the root.
    `random_source` is where $rand takes its numbers from.
    """

    constants: Mapping[str, Any] = field(default_factory=dict)
    defined: frozenset[str] = frozenset()
    collation: Any = None
    rebound_current: bool = False
    random_source: Callable[[], float] = random.random

    def binding(self, *names: str) -> ParseContext:
        """The context inside an expression that binds `names`."""
        rebound = self.rebound_current or "CURRENT" in names
        return replace(self, defined=self.defined | set(names), rebound_current=rebound)


class Expression:
    """One part of a parsed expression."""

    __slots__ = ()

    def optimized(self) -> Expression:
        """The node with its constant parts computed; raises the `CommandError` their computation raises."""
        return self

    def compiled(self) -> Evaluate:
        """A function of an `Env`; gives `MISSING` where the expression yields no value."""
        raise NotImplementedError

    def fields(self) -> set[str] | None:
        """Top-level fields of the root document the node may read; None when it may read any."""
        return set()


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
    """How a call is folded and compiled.

    `make` takes one closure an operand (None for an optional operand not given) and returns the call's closure.
    `folds` says that a call whose operands are all constant becomes one. `associative_alone` is False where a
    single operand means something else (an array's elements), so that such a call is neither merged nor flattened.
    `simplify` is applied to the call after its operands were folded and it did not become a constant.
    """

    name: str
    make: Callable[..., Evaluate]
    folds: bool = True
    associative: bool = False
    commutative: bool = False
    associative_alone: bool = True
    simplify: Callable[[Call], Expression] | None = None


class Call(Expression):
    """An operator applied to operands; an optional operand not given is None."""

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
        return self.operator.associative and (self.operator.associative_alone or len(self.operands) > 1)

    def with_constants_folded(self) -> Expression:
        """This call, whose operands are folded already, as one constant, or with its constants merged."""
        if all(o is None or type(o) is Constant for o in self.operands):
            return self.evaluated()
        if self.is_associative:
            return Call(self.operator, self._merged_operands())
        return self

    def evaluated(self) -> Constant:
        """The call computed now; its operands must be constants."""
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
    """A parsed expression: call it, or bind `evaluate` in a hot loop, with an `Env`; gives a value or MISSING."""

    __slots__ = ("_node", "evaluate")

    def __init__(self, node: Expression) -> None:
        self._node = node
        self.evaluate: Evaluate = node.compiled()

    def __call__(self, env: Env) -> Any:
        return self.evaluate(env)

    @property
    def is_constant(self) -> bool:
        return type(self._node) is Constant

    def fields(self) -> set[str] | None:
        """Top-level fields of the root document it may read; None when it may read any."""
        return self._node.fields()


def optimized(node: Expression) -> Expression:
    """The node folded; an error of a constant part is raised now, told as the server tells it."""
    try:
        return node.optimized()
    except CommandError as error:
        raise CommandError(error.code, FOLDING_PREFIX + error.message, extra=error.extra) from error
