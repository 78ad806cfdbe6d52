"""Accumulators of `$group`, of window functions and of the expressions with the same names."""

from headrace.query.accumulators.accumulator import Accumulator, parse_accumulator
from headrace.query.accumulators.operands import check_n

__all__ = ["Accumulator", "check_n", "parse_accumulator"]
