"""Accumulators of `$group`, of window functions and of the expressions with the same names."""

from headrace.query.accumulators.accumulator import Accumulator, check_n, parse_accumulator

__all__ = ["Accumulator", "check_n", "parse_accumulator"]
