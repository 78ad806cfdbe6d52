"""Accumulators as expressions: over the operands, or over the elements of a single array operand.

Rule: {$sum: x} sums the elements if x is an array, otherwise x. {$sum: [x, y]} sums x and y; an array among these is
one value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from headrace.errors import CommandError
from headrace.query.accumulators.accumulator import (
    check_fractions,
    check_method,
    check_n,
    read_n_arguments,
    read_percentile_arguments,
)
from headrace.query.accumulators.states import FACTORIES_OF_N, STATE_FACTORIES, AccumulatorState, Percentile
from headrace.query.expressions.expression import (
    Call,
    Constant,
    Env,
    Evaluate,
    Expression,
    Operator,
    ParseContext,
    parse_operand,
)
from headrace.query.expressions.operator_parser import OperatorParser, variadic


def _simple(name: str, *, merges: bool = False) -> OperatorParser:
    """Parse an accumulator over its operands. `merges`: neighbouring constants may be accumulated at parse time."""
    new_state = STATE_FACTORIES[name]

    def make(*operands: Evaluate, collation: Any) -> Evaluate:
        if len(operands) == 1:
            return partial(_over_elements, lambda: new_state(collation), operands[0])

        def evaluate(env: Env) -> Any:
            state = new_state(collation)
            for operand in operands:
                state.add(operand(env))
            return state.result()

        return evaluate

    operator = Operator(name, make, associative=merges, commutative=merges, associative_alone=False)
    return variadic(operator, collated=True)


def _over_elements(new_state: Callable[[], AccumulatorState], operand: Evaluate, env: Env) -> Any:
    state = new_state()
    value = operand(env)
    if type(value) is list:
        for item in value:
            state.add(item)
    else:
        state.add(value)
    return state.result()


def _several(name: str) -> OperatorParser:
    """Parse $firstN, $lastN, $maxN or $minN, over the elements of an array."""
    new_state = FACTORIES_OF_N[name]

    def parse(argument: Any, context: ParseContext) -> Expression:
        given = read_n_arguments(name, argument)

        def make(n: Evaluate, source: Evaluate) -> Evaluate:
            def evaluate(env: Env) -> Any:
                state = new_state(check_n(n(env)), context.collation)
                array = source(env)
                if type(array) is not list:
                    raise CommandError(5788200, "Input must be an array")
                for item in array:
                    state.add(item)
                return state.result()

            return evaluate

        operator = Operator(name, make, folds=False)
        return Call(operator, [parse_operand(given["n"], context), parse_operand(given["input"], context)])

    return parse


def _percentiles(name: str) -> OperatorParser:
    def parse(argument: Any, context: ParseContext) -> Expression:
        single = name == "$median"
        given = read_percentile_arguments(name, argument, 7436201 if single else 7436200)
        wanted = Constant([0.5]) if single else parse_operand(given["p"], context).optimized()
        if type(wanted) is not Constant:
            raise CommandError(7750300, "The $percentile 'p' field must be a constant array of numbers")
        fractions = check_fractions(wanted.value)
        check_method(given["method"])

        def make(source: Evaluate) -> Evaluate:
            return partial(_over_elements, lambda: Percentile(fractions, single), source)

        return Call(Operator(name, make, folds=False), [parse_operand(given["input"], context)])

    return parse


OPERATORS: Final[dict[str, OperatorParser]] = {
    "$avg": _simple("$avg"),
    "$firstN": _several("$firstN"),
    "$lastN": _several("$lastN"),
    "$max": _simple("$max", merges=True),
    "$maxN": _several("$maxN"),
    "$median": _percentiles("$median"),
    "$mergeObjects": _simple("$mergeObjects"),
    "$min": _simple("$min", merges=True),
    "$minN": _several("$minN"),
    "$percentile": _percentiles("$percentile"),
    "$stdDevPop": _simple("$stdDevPop"),
    "$stdDevSamp": _simple("$stdDevSamp"),
    "$sum": _simple("$sum", merges=True),
}
