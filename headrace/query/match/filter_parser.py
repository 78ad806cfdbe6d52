"""Parses filters to match expressions: the logical operators, then the operators of a field.

Rule: arguments are accepted as leniently as MongoDB accepts them (`$exists: 0`). Invalid arguments raise MongoDB's
code, mostly 2 (BadValue), and 9 (FailedToParse) for numbers of the wrong kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bson import Decimal128, Int64, Regex

from headrace.errors import CommandError
from headrace.query.collation import Collation
from headrace.query.expressions.numbers import NUMBERS, int64_of, no_long, truthy
from headrace.query.match.match_expression import (
    AlwaysBoolean,
    And,
    DocumentMatchExpression,
    DocumentTest,
    ElemMatchExpression,
    LeafMatchExpression,
    MatchExpression,
    MatchType,
    Nor,
    Not,
    Or,
)
from headrace.query.match.value_tests import (
    equals,
    exists,
    has_size,
    has_type,
    is_in,
    leaves_remainder,
    matches_regex,
    ordered,
    parse_bits,
    parse_types,
    truncated_int64,
)
from headrace.time_limit import limited, limited_call
from headrace.values.bson import MISSING
from headrace.values.order import number_key, regex_options

if TYPE_CHECKING:
    from headrace.geo.near import Near
    from headrace.query.match.index_conditions import TextQuery


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
        from headrace.query.match.index_conditions import check_nears

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


# Operators of a field.


FieldOperatorParser = Callable[[str, str, Any, FilterContext], MatchExpression]


def parse_operators(path: str, document: dict[str, Any], context: FilterContext) -> list[MatchExpression]:
    """The conditions of `{path: {$op: ..., $op: ...}}`. `document` is not empty and its first name begins with `$`.

    Raises 2 for an unknown operator, and the errors of the operators.
    """
    conditions: list[MatchExpression] = []
    for name, argument in document.items():
        if name in NEAR:
            return [_parse_near(path, document, context)]
        if name in ("$regex", "$options"):
            if name == "$regex" or "$regex" not in document:
                conditions.append(_parse_regex(path, document))
        elif name in OPERATORS:
            conditions.append(OPERATORS[name](path, name, argument, context))
        elif name != "$comment":
            raise CommandError(2, f"unknown operator: {name}")
    return conditions


def _parse_eq(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    return equality(path, argument, context)


def _parse_ne(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    if type(argument) is Regex:
        raise CommandError(2, "Can't have regex as arg to $ne.")
    return Not(equality(path, argument, context))


_ORDER_KINDS: Final = {
    "$gt": MatchType.GT, "$gte": MatchType.GTE, "$lt": MatchType.LT, "$lte": MatchType.LTE,
}  # fmt: skip


def _parse_order(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    if type(argument) is Regex:
        raise CommandError(2, f"Can't have RegEx as arg to predicate over field '{path}'.")
    return LeafMatchExpression(_ORDER_KINDS[name], path, ordered(name, argument, context.collation), argument=argument)


def _parse_in(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    if type(argument) is not list:
        raise CommandError(2, f"{name} needs an array")
    if dict in set(map(type, argument)):
        first_names = {next(iter(item), "") for item in argument if type(item) is dict}
        if any(is_operator_object({first: None}) for first in first_names):
            raise CommandError(2, f"cannot nest $ under {name}")
    if not argument:
        return AlwaysBoolean(False)
    if len(argument) == 1:
        return parse_field(path, argument[0], context)[0]
    return LeafMatchExpression(MatchType.IN, path, is_in(argument, context.collation), argument=argument)


def _parse_nin(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    return Not(_parse_in(path, name, argument, context))


def _parse_all(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    if type(argument) is not list:
        raise CommandError(2, "$all needs an array")
    if not argument:
        return AlwaysBoolean(False)
    first = argument[0]
    with_elements = type(first) is dict and next(iter(first), "") == "$elemMatch"
    conditions: list[MatchExpression] = []
    for item in argument:
        named = next(iter(item), "") if type(item) is dict else ""
        if with_elements:
            if named != "$elemMatch":
                raise CommandError(2, "$all/$elemMatch has to be consistent")
            conditions.append(_parse_elem_match(path, named, item[named], context))
        elif type(item) is dict and is_operator_object(item):
            raise CommandError(2, "no $ expressions in $all")
        else:
            conditions.append(parse_field(path, item, context)[0])
    return And(tuple(conditions))


def _parse_elem_match(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    if type(argument) is not dict:
        raise CommandError(2, "$elemMatch needs an Object")
    first = next(iter(argument), "")
    by_value = is_operator_object(argument) and first not in _LOGICAL
    if not by_value:
        if "$where" in argument:
            raise CommandError(2, "$elemMatch cannot contain $where expression")
        return ElemMatchExpression(path, parse_filter_tree(argument, context.nested()), by_value=False)
    return ElemMatchExpression(path, And(tuple(parse_operators("", argument, context.nested()))), by_value=True)


_LOGICAL: Final = ("$and", "$nor", "$or", "$where", "$expr", "$jsonSchema", "$comment")


def _parse_not(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    if type(argument) is Regex:
        return Not(regex_leaf(path, argument.pattern, regex_options(argument)))
    if type(argument) is not dict:
        raise CommandError(2, "$not needs a regex or a document")
    if not argument:
        raise CommandError(2, "$not cannot be empty")
    return Not(And(tuple(parse_operators(path, argument, context))))


def _parse_exists(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    leaf = LeafMatchExpression(MatchType.EXISTS, path, exists)
    return leaf if truthy(argument) else Not(leaf)


def _parse_size(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    size = int64_of(argument)
    if size is None:
        raise CommandError(2, "Failed to parse $size. " + no_long(name, argument))
    if size < 0:
        raise CommandError(2, f"Failed to parse $size. Expected a non-negative number in: $size: {argument}")
    return LeafMatchExpression(MatchType.SIZE, path, has_size(size), enter_last=False)


def _parse_mod(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    if type(argument) is not list:
        raise CommandError(2, "malformed mod, needs to be an array")
    if len(argument) != 2:
        raise CommandError(2, f"malformed mod, {'not enough' if len(argument) < 2 else 'too many'} elements")
    numbers = []
    for role, item in zip(("divisor", "remainder"), argument):
        if type(item) not in NUMBERS:
            raise CommandError(2, f"malformed mod, {role} not a number")
        number = truncated_int64(item)
        if number is None:
            raise CommandError(2, f"malformed mod, {role} value is invalid :: caused by :: Out of bounds or NaN")
        numbers.append(number)
    if numbers[0] == 0:
        raise CommandError(2, "divisor cannot be 0")
    return LeafMatchExpression(MatchType.MOD, path, leaves_remainder(*numbers))


def _parse_type(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    types = parse_types(argument)
    return LeafMatchExpression(MatchType.TYPE, path, has_type(types), argument=types)


_BIT_KINDS: Final = {
    "$bitsAllClear": MatchType.BITS_ALL_CLEAR, "$bitsAllSet": MatchType.BITS_ALL_SET,
    "$bitsAnyClear": MatchType.BITS_ANY_CLEAR, "$bitsAnySet": MatchType.BITS_ANY_SET,
}  # fmt: skip


def _parse_bits(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    return LeafMatchExpression(_BIT_KINDS[name], path, parse_bits(name, argument, path))


def _parse_region(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    from headrace.geo.regions import parse_region  # imported only when a filter needs it

    region = parse_region(name, argument)
    return LeafMatchExpression(MatchType.GEO, path, region, argument=region)


def _parse_near(path: str, document: dict[str, Any], context: FilterContext) -> MatchExpression:
    """`$near` with the distances beside it. No other operator may be beside it."""
    if context.nears is None:
        raise CommandError(
            5626500, "$geoNear, $near, and $nearSphere are not allowed in this context, as these operators require "
            "sorting geospatial data. If you do not need sort, consider using $geoWithin instead."
        )  # fmt: skip
    from headrace.geo.near import parse_near
    from headrace.query.match.index_conditions import GeoNearMatchExpression

    near = parse_near(path, document)
    context.nears.append(near)
    return GeoNearMatchExpression(near)


def _parse_regex(path: str, document: dict[str, Any]) -> MatchExpression:
    """`$regex` with its `$options`, in either order."""
    if "$regex" not in document:
        raise CommandError(2, "$options needs a $regex")
    pattern, options = document["$regex"], document.get("$options")
    if options is not None and type(options) is not str:
        raise CommandError(2, "$options has to be a string")
    if type(pattern) is Regex:
        inner = regex_options(pattern)
        if inner and options is not None:
            code = 51074 if next(iter(document)) == "$options" else 51075
            raise CommandError(code, "options set in both $regex and $options")
        return regex_leaf(path, pattern.pattern, inner or options or "")
    if type(pattern) is not str:
        raise CommandError(2, "$regex has to be a string")
    return regex_leaf(path, pattern, options or "")


OPERATORS: Final[dict[str, FieldOperatorParser]] = {
    "$all": _parse_all,
    "$bitsAllClear": _parse_bits,
    "$bitsAllSet": _parse_bits,
    "$bitsAnyClear": _parse_bits,
    "$bitsAnySet": _parse_bits,
    "$elemMatch": _parse_elem_match,
    "$eq": _parse_eq,
    "$exists": _parse_exists,
    "$geoIntersects": _parse_region,
    "$geoWithin": _parse_region,
    "$gt": _parse_order,
    "$gte": _parse_order,
    "$in": _parse_in,
    "$lt": _parse_order,
    "$lte": _parse_order,
    "$mod": _parse_mod,
    "$ne": _parse_ne,
    "$nin": _parse_nin,
    "$not": _parse_not,
    "$size": _parse_size,
    "$type": _parse_type,
    "$within": _parse_region,
}

NEAR: Final = frozenset({"$geoNear", "$near", "$nearSphere"})
