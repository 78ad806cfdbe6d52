"""All expression operators by name, and the known operators that are not supported."""

from __future__ import annotations

from typing import Final

from headrace.query.expressions import (
    accumulating,
    arithmetic,
    arrays,
    conversion,
    dates,
    logic,
    strings,
    value_operators,
)
from headrace.query.expressions.operator_parser import OperatorParser

_FAMILIES: Final = (
    accumulating, arithmetic, arrays, conversion, dates, logic, strings, value_operators,
)  # fmt: skip

OPERATORS: Final[dict[str, OperatorParser]] = dict(
    sorted(item for family in _FAMILIES for item in family.OPERATORS.items())
)

_JAVASCRIPT: Final = "needs JavaScript, which Headrace does not run; use expressions such as $switch, $map and $reduce"

UNSUPPORTED: Final[dict[str, tuple[int, str]]] = {
    "$function": (31264, f"$function {_JAVASCRIPT}"),
}
"""The errors of known operators that are not supported: code and message."""
