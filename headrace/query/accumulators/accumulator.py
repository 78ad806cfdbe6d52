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
from headrace.query.expressions.numbers import NUMBERS, coerced_to_long, double_of, int64_of, integral
from headrace.query.expressions.operator_parser import read_named
from headrace.query.expressions.value_text import as_text
from headrace.query.options import ANY, check_options
from headrace.query.sort import parse_sort
from headrace.values.bson import MISSING, to_string


def check_group_n(value: Any) -> int:
    """The operand `n` of an accumulator as an int. Raises 7548606 for any other value."""
    number = int64_of(value)
    if number is None or number <= 0:
        value = None if value is MISSING else value
        raise CommandError(7548606, f"parameter 'n' must be coercible to a positive 64-bit integer: {as_text(value)}")
    return number


def check_n(value: Any) -> int:
    """The operand `n` as an int.

    Raises 5787902 for other types, 31109 and 5787903 for numbers that are not integral, 5787908 for numbers that are
    not positive.
    """
    if type(value) not in NUMBERS:
        raise CommandError(5787902, f"Value for 'n' must be of integral type, but found {as_text(value)}")
    number = coerced_to_long(value)
    if integral(value) is None:
        raise CommandError(5787903, f"Value for 'n' must be of integral type, but found {as_text(value)}")
    if number <= 0:
        raise CommandError(5787908, f"'n' must be greater than 0, found {number}")
    return number


def read_n_arguments(name: str, argument: Any) -> dict[str, Any]:
    """The operands `{n, input}` of $firstN, $lastN, $minN, $maxN. Raises 5787801, 5787900, 5787901, 5787906 and
    5787907."""
    required = {"n": 5787906, "input": 5787907}
    _check_specification(name, argument, 5787900 if name in ("$maxN", "$minN") else 5787801)
    for option in argument:
        if option not in required:
            raise CommandError(5787901, f"Unknown argument for 'n' operator: {option}")
    for option, code in required.items():
        if option not in argument:
            raise CommandError(code, f"Missing value for '{option}'")
    return dict(argument)


def _check_specification(name: str, argument: Any, code: int) -> None:
    if type(argument) is not dict:
        raise CommandError(code, f"specification must be an object; found {name}: {to_string(argument)}")


def read_rank_arguments(name: str, argument: Any) -> dict[str, Any]:
    """The operands `{sortBy, output}` of $top and $bottom, and also `n` of $topN and $bottomN.

    Raises 5788001 to 5788604.
    """
    required = {"n": 5788003} if name.endswith("N") else {}
    required |= {"output": 5788004, "sortBy": 5788005}
    _check_specification(name, argument, 5788001)
    read_named(name, argument, required, required, 5788001, 5788002)
    if type(argument["sortBy"]) is not dict:
        raise CommandError(5788604, f"expected 'sortBy' to already be an object in the arguments to {name}")
    return dict(argument)


def read_percentile_arguments(name: str, argument: Any, not_object: int) -> dict[str, Any]:
    """The operands `{input, p, method}` of $percentile; $median has no `p`. Raises `not_object`, 40414, 40415 and
    14."""
    names = ("input", "p", "method") if name == "$percentile" else ("input", "method")
    types = dict.fromkeys(names, ANY) | {"method": "string"}
    _check_specification(name, argument, not_object)
    check_options(name, argument, types, names)
    return dict(argument)


def check_method(method: str) -> None:
    """Raise 2 for another `method` of $percentile than the approximate one."""
    if method != "approximate":
        raise CommandError(2, "Currently only 'approximate' can be used as a percentile 'method'.")


def check_fractions(value: Any) -> tuple[float, ...]:
    """The operand `p` of $percentile: a list of numbers from 0 to 1. Raises 7750300 to 7750303."""
    if type(value) is not list or not value:
        raise _no_fraction(7750301, value)
    fractions = []
    for item in value:
        if type(item) not in NUMBERS:
            raise _no_fraction(7750302, item)
        if not 0 <= double_of(item) <= 1:
            raise _no_fraction(7750303, item)
        fractions.append(double_of(item))
    return tuple(fractions)


def _no_fraction(code: int, found: Any) -> CommandError:
    message = "The $percentile 'p' field must be an array of numbers from [0.0, 1.0], but found: "
    return CommandError(code, message + as_text(found))


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
