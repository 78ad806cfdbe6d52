"""Parses filters to match expressions. This file has the logical operators, `field_operators.py` the operators of a
field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bson import Decimal128, Int64, Regex

from headrace.errors import CommandError
from headrace.query.collation import Collation
from headrace.query.expressions.numbers import truthy
from headrace.query.match.match_expression import (
    AlwaysBoolean,
    And,
    DocumentMatchExpression,
    DocumentTest,
    LeafMatchExpression,
    MatchExpression,
    MatchType,
    Nor,
    Or,
)
from headrace.query.match.value_tests import equals, matches_regex, truncated_int64
from headrace.time_limit import limited, limited_call
from headrace.values.bson import MISSING
from headrace.values.order import number_key, regex_options

if TYPE_CHECKING:
    from headrace.geo.near import Near
    from headrace.query.match.text_match import TextQuery


class Predicate:
    """Tells whether a document matches. Hot loops use `test`, the same function without the cost of `__call__`."""

    __slots__ = ("node", "test")

    def __init__(self, node: MatchExpression) -> None:
        """Compile `node`, which must be optimized."""
        self.node = node
        """The match expression, for code that does not compile the expression to closures."""
        self.test: DocumentTest = limited(node.compiled())

    def __call__(self, document: dict[str, Any]) -> bool:
        return self.test(document)

    def fields(self) -> set[str] | None:
        """Names of the top-level fields that the filter reads; None if it may read any."""
        return self.node.fields()

    def conjuncts(self) -> list[Predicate]:
        """Predicates whose conjunction is equivalent to this one."""
        if isinstance(self.node, And):
            return [Predicate(child) for child in self.node.children]
        return [self]

    def equality(self, path: str) -> Any:
        """The value of the last equality that the filter requires of a path; MISSING if there is none."""
        children = self.node.children if isinstance(self.node, And) else (self.node,)
        wanted = MISSING
        for child in children:
            if isinstance(child, LeafMatchExpression) and child.path == path and child.wanted is not MISSING:
                wanted = child.wanted
        return wanted

    def matched_index(self, document: dict[str, Any]) -> str | None:
        """The array index for the positional operator `$`; None if no array element was matched."""
        return self.node.find_match(document)[1]


@dataclass(frozen=True, slots=True)
class FilterContext:
    """The names that a filter may refer to. `top` is False inside `$elemMatch`, where `$expr` is not allowed.

    `nears` collects each `$near` that is parsed, `text` parses `$text`. None if the operator is not allowed. `$where`
    is allowed where `$near` is. `plain` refuses `$expr` and `$jsonSchema`, as the conditions of updates do.
    """

    collation: Collation | None = None
    variables: Mapping[str, Any] | None = None
    bound: Mapping[str, Any] | None = None
    top: bool = True
    nears: list[Near] | None = None
    text: TextQuery | None = None
    plain: bool = False

    def nested(self) -> FilterContext:
        """The context inside `$elemMatch`."""
        return FilterContext(self.collation, self.variables, self.bound, top=False, nears=self.nears, plain=self.plain)


@limited_call
def parse_filter(
    document: dict[str, Any],
    *,
    collation: Collation | None = None,
    variables: Mapping[str, Any] | None = None,
    bound: Mapping[str, Any] | None = None,
    nears: list[Near] | None = None,
    text: TextQuery | None = None,
    plain: bool = False,
) -> Predicate:
    """The predicate of a filter document. Raises the `CommandError` of an invalid filter, mostly 2 (BadValue).

    `variables` are the variables that `$expr` may refer to (`let`, NOW, ...) with their values. `bound` has more
    variables, whose values are read again for each document: the owner of the mapping may change them (as `$lookup`
    does). `nears` collects the `$near` of the filter, and `text` parses `$text`. Either is None where its operator
    is not allowed. `plain` refuses `$expr` and `$jsonSchema` with 224.
    """
    context = FilterContext(collation, variables, bound, nears=nears, text=text, plain=plain)
    node = parse_filter_tree(document, context).optimized()
    if nears:
        from headrace.query.match.geo_near import check_nears

        check_nears(node, len(nears))
    return Predicate(node)


def parse_filter_tree(document: dict[str, Any], context: FilterContext) -> MatchExpression:
    """The match expression of a filter document, not yet optimized."""
    conditions: list[MatchExpression] = []
    for name, value in document.items():
        if not name.startswith("$"):
            conditions.extend(parse_field(name, value, context))
        elif name in TOP_LEVEL:
            node = TOP_LEVEL[name](name, value, context)
            if node is not None:
                conditions.append(node)
        elif name in UNSUPPORTED:
            if context.nears is None:
                raise CommandError(2, f"{name} is not allowed in this context")
            raise CommandError(*UNSUPPORTED[name])
        elif not is_dbref({name: value}):
            raise CommandError(
                2,
                f"unknown top level operator: {name}. If you have a field name that starts with a '$' symbol, "
                "consider using $getField or $setField.",
            )
        else:
            conditions.extend(parse_field(name, value, context))
    return And(tuple(conditions))


def parse_field(path: str, value: Any, context: FilterContext) -> list[MatchExpression]:
    """The conditions of one field of a filter: `{path: value}` or `{path: {$operator: argument, ...}}`."""
    from headrace.query.match.field_operators import parse_operators  # it parses filters inside $elemMatch

    if type(value) is dict and is_operator_object(value):
        return parse_operators(path, value, context)
    if type(value) is Regex:
        return [regex_leaf(path, value.pattern, regex_options(value))]
    return [equality(path, value, context)]


def equality(path: str, value: Any, context: FilterContext) -> LeafMatchExpression:
    """The condition `{path: {$eq: value}}`."""
    return LeafMatchExpression(MatchType.EQ, path, equals(value, context.collation), wanted=value)


def regex_leaf(path: str, pattern: str, options: str) -> LeafMatchExpression:
    """The condition `{path: /pattern/options}`."""
    return LeafMatchExpression(MatchType.REGEX, path, matches_regex(pattern, options), argument=(pattern, options))


def is_operator_object(document: dict[str, Any]) -> bool:
    """Whether the value of a field is an object of operators, not an object to compare with."""
    return next(iter(document), "").startswith("$") and not is_dbref(document)


def is_dbref(document: dict[str, Any]) -> bool:
    """Whether a document is a DBRef: its names begin with a dollar sign but are not operators."""
    return next(iter(document), "") in ("$ref", "$id", "$db")


def _logical(
    make: Callable[[tuple[MatchExpression, ...]], MatchExpression],
) -> Callable[[str, Any, FilterContext], MatchExpression]:
    def parse(name: str, value: Any, context: FilterContext) -> MatchExpression:
        if type(value) is not list:
            raise CommandError(2, f"{name} must be an array")
        if not value:
            raise CommandError(2, "$and/$or/$nor must be a nonempty array")
        for item in value:
            if type(item) is not dict:
                raise CommandError(2, "$or/$and/$nor entries need to be full objects")
        return make(tuple(parse_filter_tree(item, context) for item in value))

    return parse


def _parse_always(name: str, value: Any, context: FilterContext) -> MatchExpression:
    if truncated_int64(value) != 1:
        raise CommandError(9, f"{name} must be an integer value of 1")
    return AlwaysBoolean(name == "$alwaysTrue")


def _parse_comment(name: str, value: Any, context: FilterContext) -> None:
    return None


def _parse_expr(name: str, value: Any, context: FilterContext) -> MatchExpression:
    # A filter without `$expr` should not pay for these imports.
    from headrace.query.expressions import Env, ParseContext, less_bound, parse_expression

    if not context.top:
        raise CommandError(2, "$expr can only be applied to the top-level document")
    if context.plain:
        raise CommandError(224, "$expr is not allowed in this context")
    bound = {} if context.bound is None else context.bound
    constants = less_bound(context.variables or {}, bound)
    scope = ParseContext(constants, frozenset(bound), context.collation)
    expression = parse_expression(value, scope)
    evaluate = expression.evaluate
    if expression.is_constant:
        return AlwaysBoolean(truthy(expression(Env({}))))
    names = expression.fields()
    return DocumentMatchExpression(
        MatchType.EXPRESSION,
        lambda document: truthy(evaluate(Env(document, bound))),
        None if names is None else frozenset(names),
    )


def _parse_sample_rate(name: str, value: Any, context: FilterContext) -> MatchExpression:
    if not context.top:
        raise CommandError(2, "$sampleRate can only be applied to the top-level document")
    if type(value) not in (Decimal128, Int64, float, int):
        raise CommandError(2, "argument to $sampleRate must be a numeric type")
    rate = number_key(value)
    if not 0 <= rate <= 1:
        raise CommandError(2, "numeric argument to $sampleRate must be in [0, 1]")
    if rate in (0, 1):
        return AlwaysBoolean(rate == 1)
    return _parse_expr("$expr", {"$lt": [{"$rand": {}}, value]}, context)


def _parse_schema(name: str, value: Any, context: FilterContext) -> MatchExpression:
    from headrace.query.match.json_schema import parse_schema

    if context.plain:
        raise CommandError(224, "$jsonSchema is not allowed in this context")
    if type(value) is not dict:
        raise CommandError(14, "$jsonSchema must be an object")
    return DocumentMatchExpression(MatchType.JSON_SCHEMA, parse_schema(value))


NO_TEXT_HERE: Final = "$text is not allowed in this context"


def _parse_text(name: str, value: Any, context: FilterContext) -> MatchExpression:
    if not context.top:
        raise CommandError(2, "$text can only be applied to the top-level document")
    if context.text is None:
        raise CommandError(2, NO_TEXT_HERE)
    return context.text.parse(value)


TOP_LEVEL: Final[dict[str, Callable[[str, Any, FilterContext], MatchExpression | None]]] = {
    "$alwaysFalse": _parse_always,
    "$alwaysTrue": _parse_always,
    "$and": _logical(And),
    "$comment": _parse_comment,
    "$expr": _parse_expr,
    "$jsonSchema": _parse_schema,
    "$nor": _logical(Nor),
    "$or": _logical(Or),
    "$sampleRate": _parse_sample_rate,
    "$text": _parse_text,
}

UNSUPPORTED: Final[dict[str, tuple[int, str]]] = {
    # MongoDB's answer if it is started with --noscripting.
    "$where": (6108304, "no globalScriptEngine in $where parsing: Headrace does not run JavaScript; use $expr"),
}
