"""How error messages show doubles: as a part of a specification, and as the result of an expression."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from bson import Decimal128

from headrace.errors import CommandError
from headrace.query.expressions import Env, parse_expression
from headrace.values.bson import to_string


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (-0.0, "-0.0"), (100.0, "100.0"), (1234567.0, "1234567.0"), (1.5, "1.5"), (0.1 + 0.2, "0.3"), (1e16, "1e+16"),
        (1e-5, "1e-05"), (3.14159265358979, "3.14159265358979"), (1e-308, "9.999999999999999e-309"),
        (5e-324, "4.940656458412465e-324"), (inf, "inf"), (-inf, "-inf"), (inf - inf, "nan"),
    ],
    ids=str,
)  # fmt: skip
def test_a_double_of_a_specification_has_sixteen_digits(number: float, text: str) -> None:
    assert to_string({"a": [number]}) == f"{{ a: [ {text} ] }}"


@pytest.mark.parametrize(
    ("number", "text"),
    [(-2147483648.0, "-2.14748e+09"), (-2147483648, "-2.14748e+09"), (-1.5, "-1.5"), (Decimal128("-1.50"), "-1.50")],
    ids=str,
)
def test_a_logarithm_shows_a_double_with_six_digits(number: Any, text: str) -> None:
    for name in ("$ln", "$log10"):
        with pytest.raises(CommandError, match=f"but is {text.replace('+', '.')}$"):
            parse_expression({name: "$a"}).evaluate(Env({"a": number}))
