"""The `let` of a command: variables, each an expression without a document, evaluated once per command."""

from __future__ import annotations

from typing import Any

from headrace.dispatch.arguments import object_field
from headrace.query.expressions import Env, parse_expression
from headrace.values.bson import MISSING


def variables_of(body: dict[str, Any], command: str) -> dict[str, Any]:
    """The values by name, {} where there is no `let`. Raises 14, and what a wrong expression raises."""
    if "let" not in body:
        return {}
    values = {}
    for name, value in object_field(body, "let", command).items():
        if type(value) in (dict, list) or (type(value) is str and value.startswith("$")):
            value = parse_expression(value).evaluate(Env({}))
        if value is not MISSING:
            values[name] = value
    return values
