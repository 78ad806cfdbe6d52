"""Accumulators of `$group` and of window functions, parsed.

    accumulator = parse_accumulator("$sum", "$a")
    state = accumulator.new_state(); accumulator.add(state, Env(document)); accumulator.result(state)

Rule: `result` returns MISSING if there is no value. More values may be added after `result`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import CommandError
from headrace.query.accumulators.operands import (
    check_fractions,
    check_group_n,
    check_method,
    read_n_arguments,
    read_percentile_arguments,
    read_rank_arguments,
)
from headrace.query.accumulators.states import (
    FACTORIES_OF_N,
    STATE_FACTORIES,
    AccumulatorState,
    Growing,
    Percentile,
    Sum,
    TopBottom,
)
from headrace.query.expressions import CompiledExpression, Env, ParseContext, parse_expression
from headrace.query.expressions.expression import Evaluate
from headrace.query.sort import parse_sort


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One accumulator: `new_state` creates the state of a group, `evaluate` computes the value that a document adds.

    If `n` depends on the key of the group, `keyed` creates the state, from an environment whose document is the key.
    """

    new_state: Callable[[], AccumulatorState]
    evaluate: Evaluate
    keyed: Callable[[Env], AccumulatorState] | None = None

    @property
    def grows(self) -> bool:
        """Whether a state may take more memory with each document."""
        return isinstance(self.new_state(), Growing)

    def state_of(self, key: Any, bound: Mapping[str, Any]) -> AccumulatorState:
        """A new state of the group with this key. Raises 7548606 if `n` is then not a positive integer."""
        if self.keyed is None:
            return self.new_state()
        return self.keyed(Env(key if type(key) is dict else {}, bound))

    def add(self, state: AccumulatorState, env: Env) -> None:
        """Add a document to a group. Raises the errors of the expression and of the state."""
        state.add(self.evaluate(env))

    def result(self, state: AccumulatorState) -> Any:
        """The value of the group so far, MISSING if there is none."""
        return state.result()


def parse_accumulator(name: str, spec: Any, context: ParseContext | None = None) -> Accumulator:
    """Parse the accumulator `{name: spec}`.

    Raises 15952 for an unknown name, and the errors of its operands.
    """
    context = context or ParseContext()
    if name in STATE_FACTORIES:
        new_state = STATE_FACTORIES[name]
        return Accumulator(lambda: new_state(context.collation), parse_expression(spec, context).evaluate)
    if name in _PARSERS:
        return _PARSERS[name](name, spec, context)
    if name in UNSUPPORTED:
        code, message = UNSUPPORTED[name]
        raise CommandError(code, message)
    raise CommandError(15952, f"unknown group operator '{name}'")


def _parse_count(name: str, spec: Any, context: ParseContext) -> Accumulator:
    if spec != {} or type(spec) is not dict:
        raise CommandError(14, "$count takes no arguments, i.e. $count:{}")
    return Accumulator(Sum, lambda env: 1)


def _holding_n(
    value: Any, context: ParseContext, new_state: Callable[[int], AccumulatorState], evaluate: Evaluate
) -> Accumulator:
    """The accumulator whose states hold `n` values. `value` is the expression of `n`."""
    expression: CompiledExpression = parse_expression(value, context)
    if not expression.is_constant:
        return Accumulator(lambda: new_state(1), evaluate, lambda env: new_state(check_group_n(expression(env))))
    n = check_group_n(expression(Env({})))
    return Accumulator(lambda: new_state(n), evaluate)


def _parse_first_n(name: str, spec: Any, context: ParseContext) -> Accumulator:
    given = read_n_arguments(name, spec)
    factory, source = FACTORIES_OF_N[name], parse_expression(given["input"], context).evaluate
    return _holding_n(given["n"], context, lambda n: factory(n, context.collation), source)


def _parse_ranked(name: str, spec: Any, context: ParseContext) -> Accumulator:
    given = read_rank_arguments(name, spec)
    single = not name.endswith("N")
    key = parse_sort(given["sortBy"], context.collation, natural=False).key
    output = parse_expression(given["output"], context).evaluate
    bottom = name.startswith("$bottom")
    n = 1 if single else given["n"]
    return _holding_n(
        n, context, lambda n: TopBottom(n, bottom, single), lambda env: (key(env.root), output(env))
    )  # fmt: skip


def _parse_percentiles(name: str, spec: Any, context: ParseContext) -> Accumulator:
    single = name == "$median"
    given = read_percentile_arguments(name, spec, 7436100 if single else 7429703)
    fractions = (0.5,) if single else check_fractions(parse_expression(given["p"], context)(Env({})))
    check_method(given["method"])
    source = parse_expression(given["input"], context).evaluate
    return Accumulator(lambda: Percentile(fractions, single), source)


_PARSERS: Final[dict[str, Callable[[str, Any, ParseContext], Accumulator]]] = {
    "$bottom": _parse_ranked,
    "$bottomN": _parse_ranked,
    "$count": _parse_count,
    "$firstN": _parse_first_n,
    "$lastN": _parse_first_n,
    "$maxN": _parse_first_n,
    "$median": _parse_percentiles,
    "$minN": _parse_first_n,
    "$percentile": _parse_percentiles,
    "$top": _parse_ranked,
    "$topN": _parse_ranked,
}

UNSUPPORTED: Final[dict[str, tuple[int, str]]] = {
    "$accumulator": (31264, "$accumulator needs JavaScript, which Headrace does not run; use $push and then $reduce"),
}
