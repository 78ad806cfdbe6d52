"""The `let` of a command: variables, each an expression without a document, evaluated once per command."""

from __future__ import annotations

from typing import Any

from headrace.dispatch.generic_arguments import LET
from headrace.query.expressions import Env, parse_expression
from headrace.values.bson import MISSING


def variables_of(body: dict[str, Any]) -> dict[str, Any]:
    """The values by name, {} where there is no `let`. Raises what a wrong expression raises."""
    values = {}
    for name, value in LET.of(body).items():
        if type(value) in (dict, list) or (type(value) is str and value.startswith("$")):
            value = parse_expression(value).evaluate(Env({}))
        if value is not MISSING:
            values[name] = value
    return values
