"""Accumulators of `$group`, of window functions and of the expressions of the same names."""

from headrace.query.accumulators.accumulator import Accumulator, parse_accumulator

__all__ = ["Accumulator", "parse_accumulator"]
