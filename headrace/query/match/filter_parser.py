"""From a filter document to its tree: logical operators here, those of a field in `field_operators.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson import Regex

from headrace.errors import CommandError
from headrace.query.collation import Collation
from headrace.query.match.match_expression import Always, Both, Computed, Either, Kind, Leaf, Neither, Node
from headrace.query.match.predicate import Predicate
from headrace.query.match.value_tests import equals, matches_pattern, whole_number
from headrace.values.bson import MISSING
from headrace.values.order import regex_options


@dataclass(frozen=True, slots=True)
class Context:
    """What holds for the whole filter; `top` says that `$expr` is allowed here."""

    collation: Collation | None = None
    variables: Mapping[str, Any] | None = None
    bound: Mapping[str, Any] | None = None
    top: bool = True

    def nested(self) -> Context:
        """The context inside `$elemMatch`."""
        return Context(self.collation, self.variables, self.bound, top=False)


def parse_filter(
    document: dict[str, Any],
    *,
    collation: Collation | None = None,
    variables: Mapping[str, Any] | None = None,
    bound: Mapping[str, Any] | None = None,
) -> Predicate:
    """The predicate a filter spells; raises the `CommandError` of a bad one (mostly 2, BadValue).

    `variables` are those `$expr` may name (`let`, NOW...) with their values. `bound` are more of them, read anew
    for each document: whoever gave the mapping may change its values (a `$lookup` does).
    """
    return Predicate(parse_node(document, Context(collation, variables, bound)).simplified())


def parse_node(document: dict[str, Any], context: Context) -> Node:
    """The tree of a filter document, not simplified."""
    parts: list[Node] = []
    for name, value in document.items():
        if not name.startswith("$"):
            parts.extend(parse_field(name, value, context))
        elif name in TOP_LEVEL:
            node = TOP_LEVEL[name](name, value, context)
            if node is not None:
                parts.append(node)
        elif name in UNSUPPORTED:
            raise CommandError(*UNSUPPORTED[name])
        elif not is_reference({name: value}):
            raise CommandError(
                2,
                f"unknown top level operator: {name}. If you have a field name that starts with a '$' symbol, "
                "consider using $getField or $setField.",
            )
        else:
            parts.extend(parse_field(name, value, context))
    return Both(tuple(parts))


def parse_field(path: str, value: Any, context: Context) -> list[Node]:
    """The conditions that one field of a filter makes."""
    from headrace.query.match.field_operators import parse_operators  # which parses filters inside $elemMatch

    if type(value) is dict and is_operators(value):
        return parse_operators(path, value, context)
    if type(value) is Regex:
        return [pattern_leaf(path, value.pattern, regex_options(value))]
    return [equality(path, value, context)]


def equality(path: str, value: Any, context: Context) -> Leaf:
    """The condition `{path: {$eq: value}}`."""
    return Leaf(Kind.EQUAL, path, equals(value, context.collation), wanted=value)


def pattern_leaf(path: str, pattern: str, options: str) -> Leaf:
    """The condition `{path: /pattern/options}`."""
    return Leaf(Kind.PATTERN, path, matches_pattern(pattern, options))


def is_operators(document: dict[str, Any]) -> bool:
    """Whether the value of a field is operators (and not an object to be equal to)."""
    return next(iter(document), "").startswith("$") and not is_reference(document)


def is_reference(document: dict[str, Any]) -> bool:
    """Whether a document is a DBRef, whose names begin with a dollar sign and are no operators."""
    return next(iter(document), "") in ("$ref", "$id", "$db")


def _logical(make: Callable[[tuple[Node, ...]], Node]) -> Callable[[str, Any, Context], Node]:
    def parse(name: str, value: Any, context: Context) -> Node:
        if type(value) is not list:
            raise CommandError(2, f"{name} must be an array")
        if not value:
            raise CommandError(2, "$and/$or/$nor must be a nonempty array")
        for item in value:
            if type(item) is not dict:
                raise CommandError(2, "$or/$and/$nor entries need to be full objects")
        return make(tuple(parse_node(item, context) for item in value))

    return parse


def _parse_always(name: str, value: Any, context: Context) -> Node:
    if whole_number(value) != 1:
        raise CommandError(9, f"{name} must be an integer value of 1")
    return Always(name == "$alwaysTrue")


def _parse_comment(name: str, value: Any, context: Context) -> None:
    return None


def _parse_expr(name: str, value: Any, context: Context) -> Node:
    from headrace.query.expressions import Env, ParseContext, parse_expression  # no filter without it should pay

    if not context.top:
        raise CommandError(2, "$expr can only be applied to the top-level document")
    bound = {} if context.bound is None else context.bound
    constants = {name: known for name, known in (context.variables or {}).items() if name not in bound}
    scope = ParseContext(constants, frozenset(bound), context.collation)
    expression = parse_expression(value, scope)
    evaluate = expression.evaluate
    if expression.is_constant:
        return Always(truthy(expression(Env({}))))
    names = expression.fields()
    return Computed(
        Kind.EXPRESSION,
        lambda document: truthy(evaluate(Env(document, bound))),
        None if names is None else frozenset(names),
    )


def truthy(value: Any) -> bool:
    """What an expression's value counts as: false, null, missing and zeroes are false, all else true."""
    if value is None or value is MISSING or value is False:
        return False
    return type(value) in (str, list, dict) or not equals(0)(value)


def _parse_schema(name: str, value: Any, context: Context) -> Node:
    from headrace.query.match.json_schema import parse_schema

    if type(value) is not dict:
        raise CommandError(14, "$jsonSchema must be an object")
    return Computed(Kind.SCHEMA, parse_schema(value))


TOP_LEVEL: Final[dict[str, Callable[[str, Any, Context], Node | None]]] = {
    "$alwaysFalse": _parse_always,
    "$alwaysTrue": _parse_always,
    "$and": _logical(Both),
    "$comment": _parse_comment,
    "$expr": _parse_expr,
    "$jsonSchema": _parse_schema,
    "$nor": _logical(Neither),
    "$or": _logical(Either),
}

UNSUPPORTED: Final[dict[str, tuple[int, str]]] = {
    "$sampleRate": (115, "$sampleRate is not supported"),
    "$text": (27, "text index required for $text query"),
    "$where": (115, "$where is not supported: there is no JavaScript here"),
}
