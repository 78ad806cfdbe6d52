"""Aggregation expressions: parsed once into closures, then evaluated against documents.

expression = parse_expression({"$add": ["$a", 1]})
expression(Env({"a": 2}))        -> 3, or MISSING if the expression has no value
"""

from headrace.query.expressions.expression import (
    CompiledExpression,
    Env,
    ParseContext,
    less_bound,
    parse_expression,
    with_more,
)

__all__ = ["CompiledExpression", "Env", "ParseContext", "less_bound", "parse_expression", "with_more"]
