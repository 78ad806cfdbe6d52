"""Array operators: elements, slices, ranges, search, sort, zip; sets; $filter, $map and $reduce.

Rule for sets: elements are compared as MongoDB does (1 and 1.0 are one element). Unions and intersections are sorted.
Differences are in the order of the first array. Of equal elements the first is retained.

Rule for $filter, $map and $reduce, which bind a variable to each element: they are not folded at parse time, even for
constant arrays. Only their operands are folded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from itertools import chain
from typing import Any, Final

from headrace import limits
from headrace.errors import CommandError
from headrace.limits import EXPRESSION_ARRAY_LENGTH_MAX
from headrace.query.expressions.expression import (
    NULL,
    Call,
    Constant,
    Env,
    Evaluate,
    Expression,
    Operator,
    ParseContext,
    check_variable_name,
    checked_path,
    parse_operand,
)
from headrace.query.expressions.numbers import NUMBERS, int32_of, is_nullish, truthy
from headrace.query.expressions.operator_parser import (
    OperatorParser,
    binary,
    checked_int32,
    combining,
    of_type,
    of_values,
    parse_operands,
    positional,
    read_named,
    scoped,
    single,
    unary,
    with_collation,
)
from headrace.query.expressions.value_text import as_text
from headrace.query.operation_memory import size_of
from headrace.time_limit import check_step
from headrace.values.bson import MISSING, type_name
from headrace.values.order import equal, hash_key, sort_key
from headrace.values.paths import get_path

_LONG_COUNT: Final = 100_000


def _element(name: str, array: Any, index: Any) -> Any:
    if is_nullish(array) or is_nullish(index):
        return None
    if type(array) is not list:
        which = "first argument" if name == "$arrayElemAt" else "argument"
        raise CommandError(28689, f"{name}'s {which} must be an array, but is {type_name(array)}")
    position = checked_int32(
        index, 28690, f"{name}'s second argument must be a numeric value, but is ",
        f"{name}'s second argument must be representable as a 32-bit integer: ",
    )  # fmt: skip
    return array[position] if -len(array) <= position < len(array) else MISSING


def _check_length(name: str, length: int) -> None:
    """Raise 146 if an operator's array is too long, or if it is long while the process has too little memory."""
    if length > EXPRESSION_ARRAY_LENGTH_MAX:
        raise CommandError(146, f"{name} would use too much memory")
    if length > _LONG_COUNT:
        check_step(length)


def _joined(arrays: list[list[Any]]) -> list[Any]:
    _check_length("$concatArrays", sum(map(len, arrays)))
    return list(chain.from_iterable(arrays))


def _make_in(value: Evaluate, array: Evaluate, *, collation: Any) -> Evaluate:
    def evaluate(env: Env) -> bool:
        sought, items = value(env), array(env)
        if type(items) is not list:
            raise CommandError(40081, f"$in requires an array as a second argument, found: {type_name(items)}")
        return any(equal(sought, item, collation) for item in items)

    return evaluate


def _make_index_of(
    array: Evaluate, sought: Evaluate, start: Evaluate | None = None, end: Evaluate | None = None, *, collation: Any
) -> Evaluate:
    def evaluate(env: Env) -> Any:
        items = array(env)
        if is_nullish(items):
            return None
        if type(items) is not list:
            raise CommandError(40090, f"$indexOfArray requires an array as a first argument, found: {type_name(items)}")
        first = 0 if start is None else search_bound("$indexOfArray", start(env), "starting index", 9711600)
        last = len(items)
        if end is not None:
            last = min(last, search_bound("$indexOfArray", end(env), "ending index", 9711600))
        target = sought(env)
        return next((index for index in range(first, last) if equal(items[index], target, collation)), -1)

    return evaluate


def _simplify_index_of(call: Call) -> Expression:
    array = call.operands[0]
    if type(array) is not Constant:
        return call
    if is_nullish(array.value):
        return NULL
    if type(array.value) is not list:
        message = (
            f"First operand of $indexOfArray must be an array. First argument is of type: {type_name(array.value)}"
        )
        raise CommandError(50809, message)
    return call


def search_bound(name: str, value: Any, what: str, code: int = 40096) -> int:
    """The bound of a search as a 32-bit int. Raises `code` if it is not integral, `code` + 1 if it is negative."""
    number = int32_of(value)
    if number is None:
        found = f"{type_name(value)}, with value: {as_text(value)}"
        raise CommandError(code, f"{name}requires an integral {what}, found a value of type: {found}")
    if number < 0:
        raise CommandError(code + 1, f"{name} requires a nonnegative {what}, found: {number}")
    return number


def _range(start: Any, end: Any, step: Any = 1) -> list[int]:
    first = _range_number("starting value", 34443, start)
    last = _range_number("ending value", 34445, end)
    stride = _range_number("step value", 34447, step)
    if stride == 0:
        raise CommandError(34449, "$range requires a non-zero step value")
    numbers = range(first, last, stride)
    _check_length("$range", len(numbers))
    return list(numbers)


def _range_number(what: str, code: int, value: Any) -> int:
    beyond = f"$range requires a {what} that can be represented as a 32-bit integer, found value: "
    return checked_int32(value, code, f"$range requires a numeric {what}, found value of type: ", beyond)


def _make_slice(array: Evaluate, second: Evaluate, third: Evaluate | None = None) -> Evaluate:
    def evaluate(env: Env) -> Any:
        items, position = array(env), second(env)
        if is_nullish(items) or is_nullish(position):
            return None
        if type(items) is not list:
            raise CommandError(28724, f"First argument to $slice must be an array, but is of type: {type_name(items)}")
        number = _slice_number("Second", 28725, position)
        if third is None:
            return items[:number] if number >= 0 else items[number:]
        count = third(env)
        if is_nullish(count):
            return None
        length = _slice_number("Third", 28727, count)
        if length <= 0:
            raise CommandError(28729, f"Third argument to $slice must be positive: {length}")
        start = max(0, len(items) + number) if number < 0 else number
        return items[start : start + length]

    return evaluate


def _slice_number(which: str, code: int, value: Any) -> int:
    what = f"{which} argument to $slice"
    return checked_int32(
        value, code, f"{what} must be numeric, but is of type: ", f"{what} can't be represented as a 32-bit integer: "
    )


def _parse_zip(argument: Any, context: ParseContext) -> Expression:
    if type(argument) is not dict:
        raise CommandError(34460, f"$zip only supports an object as an argument, found {type_name(argument)}")
    inputs: list[Any] = []
    defaults: list[Any] = []
    longest = False
    for name, value in argument.items():
        if name == "inputs":
            inputs = _zip_list(34461, name, value)
        elif name == "defaults":
            defaults = _zip_list(34462, name, value)
        elif name == "useLongestLength":
            if type(value) is not bool:
                raise CommandError(34463, f"useLongestLength must be a bool, found {type_name(value)}")
            longest = value
        else:
            raise CommandError(34464, f"$zip found an unknown argument: {name}")
    if not inputs:
        raise CommandError(34465, "$zip requires at least one input array")
    if defaults and not longest:
        raise CommandError(34466, "cannot specify defaults unless useLongestLength is true")
    if defaults and len(defaults) != len(inputs):
        raise CommandError(34467, "defaults and inputs must have the same length")
    operands = [parse_operand(item, context) for item in inputs + defaults]
    return Call(_zip(len(inputs), longest), operands)


def _zip_list(code: int, name: str, value: Any) -> list[Any]:
    if type(value) is not list:
        raise CommandError(code, f"{name} must be an array of expressions, found {type_name(value)}")
    return value


def _zip(input_count: int, longest: bool) -> Operator:
    def make(*operands: Evaluate) -> Evaluate:
        inputs, defaults = operands[:input_count], operands[input_count:]

        def evaluate(env: Env) -> Any:
            arrays = []
            for operand in inputs:
                value = operand(env)
                if is_nullish(value):
                    return None
                if type(value) is not list:
                    raise CommandError(34468, f"$zip found a non-array expression in input: {as_text(value)}")
                arrays.append(value)
            lengths = [len(array) for array in arrays]
            fill: list[Any] = [None] * input_count
            if defaults and min(lengths) != max(lengths):
                fill = [None if (value := default(env)) is MISSING else value for default in defaults]
            rows = range(max(lengths) if longest else min(lengths))
            _check_length("$zip", len(rows) * (len(arrays) + 1))
            zipped: list[list[Any]] = []
            for row in rows:
                zipped.append([array[row] if row < len(array) else other for array, other in zip(arrays, fill)])
            return zipped

        return evaluate

    return Operator("$zip", make, folds=False)


def _parse_sort_array(argument: Any, context: ParseContext) -> Expression:
    codes = {"input": 2942502, "sortBy": 2942503}
    read_named("$sortArray", argument, codes, codes, 2942500, 2942501)
    keys = _sort_keys(argument["sortBy"])

    def sort(items: list[Any]) -> list[Any]:
        for steps, descending in reversed(keys):
            items = sorted(items, key=partial(_sort_part, steps, context.collation), reverse=descending)
        return items

    message = "The input argument to $sortArray must be an array, but was of type: "
    make = unary(of_type(list, 2942504, message, sort))
    return Call(Operator("$sortArray", make, folds=False), [parse_operand(argument["input"], context)])


def _sort_part(steps: tuple[str, ...], collation: Any, item: Any) -> Any:
    value = get_path(item, steps)
    return sort_key(None if value is MISSING else value, collation)


def _sort_keys(pattern: Any) -> list[tuple[tuple[str, ...], bool]]:
    """(path, whether it descends) of each sort key, the most significant first. An empty path is the whole element."""
    if type(pattern) is not dict:
        if type(pattern) not in NUMBERS:
            raise CommandError(
                2942507, "The $sort element type must be either an object or a numeric type, but found: " +
                type_name(pattern),
            )  # fmt: skip
        return [((), _descends(pattern, 2942506))]
    if not pattern:
        raise CommandError(2942505, "$sortArray requires at least one sort field")
    return [(checked_path(path), _descends(direction, 2942505)) for path, direction in pattern.items()]


def _descends(direction: Any, code: int) -> bool:
    number = int32_of(direction) if type(direction) in NUMBERS else None
    if number not in (1, -1):
        raise CommandError(code, f"The $sort element value must be either 1 or -1, but found: {as_text(direction)}")
    return number == -1


_INDEX_OF: Final = Operator("$indexOfArray", _make_index_of, simplify=_simplify_index_of)


# Sets.


Keyed = dict[Hashable, Any]
"""Values by their hash keys."""


def _keyed(array: list[Any], collation: Any) -> Keyed:
    keyed: Keyed = {}
    for item in array:
        keyed.setdefault(hash_key(item, collation), item)
    return keyed


def _sorted(items: list[Any], collation: Any) -> list[Any]:
    return sorted(items, key=lambda item: sort_key(item, collation))


def _union(arrays: list[list[Any]], *, collation: Any) -> list[Any]:
    return _sorted(list(_keyed(list(chain.from_iterable(arrays)), collation).values()), collation)


def _intersection(arrays: list[list[Any]], *, collation: Any) -> list[Any]:
    common, *others = (_keyed(array, collation) for array in arrays or [[]])
    for other in others:
        if len(common) > len(other):
            common, other = other, common
        common = {key: item for key, item in common.items() if key in other}
    return _sorted(list(common.values()), collation)


def _array(code: int, name: str, value: Any) -> list[Any]:
    if type(value) is not list:
        raise CommandError(code, f"All operands of {name} must be arrays. One argument is of type: {type_name(value)}")
    return value


def _make_difference(left: Evaluate, right: Evaluate, *, collation: Any) -> Evaluate:
    def evaluate(env: Env) -> Any:
        minuend, subtrahend = left(env), right(env)
        if is_nullish(minuend) or is_nullish(subtrahend):
            return None
        _check_both("$setDifference", 17048, minuend, 17049, subtrahend)
        keys, seen, items = _keyed(subtrahend, collation), set[Hashable](), []
        for item in minuend:
            key = hash_key(item, collation)
            if key not in keys and key not in seen:
                seen.add(key)
                items.append(item)
        return items

    return evaluate


def _check_both(name: str, first_code: int, first: Any, second_code: int, second: Any) -> None:
    for which, code, value in (("First", first_code, first), ("Second", second_code, second)):
        if type(value) is not list:
            message = f"both operands of {name} must be arrays. {which} argument is of type: {type_name(value)}"
            raise CommandError(code, message)


def _make_equals(*operands: Evaluate, collation: Any) -> Evaluate:

    def evaluate(env: Env) -> bool:
        first: Keyed | None = None
        for operand in operands:
            keys = _keyed(_array(17044, "$setEquals", operand(env)), collation)
            if first is None:
                first = keys
            elif len(first) != len(keys) or not _contains_all(first, keys):
                return False
        return True

    return evaluate


_EQUALS: Final = Operator("$setEquals", _make_equals)


def _parse_equals(argument: Any, context: ParseContext) -> Expression:
    operands = parse_operands(argument, context)
    if len(operands) < 2:
        raise CommandError(17045, f"$setEquals needs at least two arguments had: {len(operands)}")
    return Call(with_collation(_EQUALS, context), operands)


def _make_subset(left: Evaluate, right: Evaluate, *, collation: Any, first_code: int = 17046) -> Evaluate:
    def evaluate(env: Env) -> bool:
        subset, superset = left(env), right(env)
        _check_both("$setIsSubset", first_code, subset, 17042, superset)
        return _contains_all(_keyed(superset, collation), _keyed(subset, collation))

    return evaluate


def _contains_all(keyed: Keyed, keys: Keyed) -> bool:
    return keys.keys() <= keyed.keys()


def _simplify_subset(call: Call) -> Expression:
    """Renumber the errors if the second operand is constant. The server computes its set once, and so uses other
    codes."""
    superset = call.operands[1]
    if type(superset) is not Constant:
        return call
    if type(superset.value) is not list:
        _check_both("$setIsSubset", 17311, [], 17311, superset.value)
    make = call.operator.make

    def remake(left: Evaluate, right: Evaluate) -> Evaluate:
        return make(left, right, first_code=17310)

    return Call(Operator("$setIsSubset", remake), call.operands)


def _elements(name: str, code: int, decisive: bool) -> OperatorParser:
    def decide(value: list[Any]) -> bool:
        return decisive if any(truthy(item) is decisive for item in value) else not decisive

    apply = of_type(list, code, f"{name}'s argument must be an array, but is ", decide, nullable=False)
    return single(name, apply)


def _merging(name: str, code: int, function: Callable[..., list[Any]]) -> OperatorParser:
    message = f"All operands of {name} must be arrays. One argument is of type: "
    return combining(name, [list], code, message, function, commutative=True, collated=True)


_SUBSET: Final = Operator("$setIsSubset", _make_subset, simplify=_simplify_subset)


# A variable for each element.


_SIZED: Final = frozenset({bytes, dict, list, str})
"""Types whose values may take much memory."""


def _variable(argument: dict[str, Any]) -> str:
    name = argument.get("as", "this")
    name = name if type(name) is str else ""
    check_variable_name(name, for_writing=True)
    return name


def _parse_map(argument: Any, context: ParseContext) -> Expression:
    read_named("$map", argument, ("input", "as", "in"), {"input": 16880, "in": 16882}, 16878, 16879)
    source = parse_operand(argument["input"], context)
    variable = _variable(argument)
    return Call(_map(variable), [source, parse_operand(argument["in"], context.binding(variable))])


def _map(variable: str) -> Operator:
    def make(source: Evaluate, each: Evaluate) -> Evaluate:
        def evaluate(env: Env) -> Any:
            array = source(env)
            if is_nullish(array):
                return None
            if type(array) is not list:
                raise CommandError(16883, f"input to $map must be an array not {type_name(array)}")
            inner, variables = scoped(env, (variable,))
            mapped, size = [], 0
            for item in array:
                variables[variable] = item
                value = each(inner)
                mapped.append(None if value is MISSING else value)
                if type(value) in _SIZED:
                    size += size_of(value)
                    if size > limits.EXPRESSION_BYTES_MAX:
                        raise CommandError(146, "$map would use too much memory and cannot spill")
            return mapped

        return evaluate

    return Operator("$map", make, folds=False)


def _parse_filter(argument: Any, context: ParseContext) -> Expression:
    read_named("$filter", argument, ("input", "as", "cond", "limit"), {"input": 28648, "cond": 28650}, 28646, 28647)
    source = parse_operand(argument["input"], context)
    variable = _variable(argument)
    condition = parse_operand(argument["cond"], context.binding(variable))
    limit = parse_operand(argument["limit"], context) if "limit" in argument else None
    return Call(_filter(variable), [source, condition, limit])


def _filter(variable: str) -> Operator:
    def make(source: Evaluate, condition: Evaluate, limit: Evaluate | None) -> Evaluate:
        def evaluate(env: Env) -> Any:
            array = source(env)
            if is_nullish(array):
                return None
            if type(array) is not list:
                raise CommandError(28651, f"input to $filter must be an array not {type_name(array)}")
            wanted = None if limit is None else _limit(limit(env))
            inner, variables = scoped(env, (variable,))
            selected: list[Any] = []
            for item in array:
                variables[variable] = item
                if truthy(condition(inner)):
                    selected.append(item)
                    if len(selected) == wanted:
                        break
            return selected

        return evaluate

    return Operator("$filter", make, folds=False)


def _limit(value: Any) -> int | None:
    """The number of elements to keep; None for all."""
    if is_nullish(value):
        return None
    number = int32_of(value)
    if number is None:
        raise CommandError(327391, f"$filter: limit must be represented as a 32-bit integral value: {as_text(value)}")
    if number <= 0:
        raise CommandError(327392, f"$filter: limit must be greater than 0: {number}")
    return number


def _parse_reduce(argument: Any, context: ParseContext) -> Expression:
    codes = {"input": 40077, "initialValue": 40078, "in": 40079}
    read_named("$reduce", argument, codes, codes, 40075, 40076)
    inside = context.binding("this", "value")
    return Call(
        _REDUCE, [parse_operand(argument[name], inside if name == "in" else context) for name in codes]
    )  # fmt: skip


def _make_reduce(source: Evaluate, initial: Evaluate, step: Evaluate) -> Evaluate:
    def evaluate(env: Env) -> Any:
        array = source(env)
        if is_nullish(array):
            return None
        if type(array) is not list:
            raise CommandError(40080, f"$reduce requires that 'input' be an array, found: {as_text(array)}")
        value = initial(env)
        inner, variables = scoped(env, ("this", "value"))
        for item in array:
            variables["this"] = item
            variables["value"] = value
            value = step(inner)
        return value

    return evaluate


_REDUCE: Final = Operator("$reduce", _make_reduce, folds=False)


OPERATORS: Final[dict[str, OperatorParser]] = {
    "$allElementsTrue": _elements("$allElementsTrue", 17040, False),
    "$anyElementTrue": _elements("$anyElementTrue", 17041, True),
    "$arrayElemAt": positional(
        Operator("$arrayElemAt", binary(lambda array, index: _element("$arrayElemAt", array, index))), 2
    ),
    "$concatArrays": combining("$concatArrays", [list], 28664, "$concatArrays only supports arrays, not ", _joined),
    "$filter": _parse_filter,
    "$first": single("$first", lambda array: _element("$first", array, 0)),
    "$in": positional(Operator("$in", _make_in), 2, collated=True),
    "$indexOfArray": positional(_INDEX_OF, 2, 4, collated=True),
    "$isArray": single("$isArray", lambda value: type(value) is list),
    "$last": single("$last", lambda array: _element("$last", array, -1)),
    "$map": _parse_map,
    "$range": positional(Operator("$range", of_values(_range)), 2, 3),
    "$reduce": _parse_reduce,
    "$reverseArray": single(
        "$reverseArray",
        of_type(
            list, 34435, "The argument to $reverseArray must be an array, but was of type: ", lambda array: array[::-1]
        ),
    ),
    "$setDifference": positional(Operator("$setDifference", _make_difference), 2, collated=True),
    "$setEquals": _parse_equals,
    "$setIntersection": _merging("$setIntersection", 17047, _intersection),
    "$setIsSubset": positional(_SUBSET, 2, collated=True),
    "$setUnion": _merging("$setUnion", 17043, _union),
    "$size": single(
        "$size", of_type(list, 17124, "The argument to $size must be an array, but was of type: ", len, nullable=False)
    ),
    "$slice": positional(Operator("$slice", _make_slice), 2, 3),
    "$sortArray": _parse_sort_array,
    "$zip": _parse_zip,
}
