"""The tree of a parsed expression: constants, paths and calls, and its parser. Constants are folded as in MongoDB.

    value --parse--> Expression --optimized()--> Expression --compiled()--> Callable[[Env], value]

Rule: an object with one field that begins with "$" is an operator. Any other object is built field by field.

A path ("$a.b", "$$name.a.b") applied to an array is applied to each object in it; other elements are ignored. A number
in a path is a field name, never an index. Paths of filters differ: see `values/paths.py`.

Whether a constant subexpression is evaluated at parse time decides which errors a client sees (even from branches that
are never taken), so folding follows the server. A call folds if its operator does and all its operands are constant.
Associative operators merge adjacent constants. Commutative operators move constants last.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from headrace import limits
from headrace.errors import CommandError
from headrace.query.expressions.value_text import checked_text
from headrace.time_limit import limited
from headrace.values.bson import MISSING
from headrace.values.paths import get_path

FOLDING_PREFIX: Final = "Failed to optimize pipeline :: caused by :: "
_NO_CONSTANTS: Final[Mapping[str, Any]] = {}


class Env:
    """The environment of an evaluation: the document, and the values of `$$` variables by name (without `$$`).

    `variables` need not have ROOT, CURRENT or REMOVE. An evaluation does not change the environment.
    """

    __slots__ = ("root", "variables")

    def __init__(self, root: Any, variables: Mapping[str, Any] = _NO_CONSTANTS) -> None:
        self.root = root
        self.variables = variables


Evaluate: TypeAlias = Callable[[Env], Any]


@dataclass(frozen=True, slots=True)
class ParseContext:
    """The names that an expression may refer to, known at parse time.

    `constants` are variables with the same value for the complete command (`let`, NOW, CLUSTER_TIME, $redact's KEEP,
    ...). They are folded. `defined` are names bound at evaluation time through `Env.variables`. `rebound_current` means
    that CURRENT is one of these, so that "$a" is not a field of the root. `random_source` gives the numbers of $rand.
    `metadata` has the arguments of `$meta` for which documents have a value.
    """

    constants: Mapping[str, Any] = field(default_factory=dict)
    defined: frozenset[str] = frozenset()
    collation: Any = None
    rebound_current: bool = False
    random_source: Callable[[], float] = random.random
    metadata: Mapping[str, Callable[[], Evaluate]] = field(default_factory=dict)

    def binding(self, *names: str) -> ParseContext:
        """The context of a subexpression of an expression that binds `names`."""
        rebound = self.rebound_current or "CURRENT" in names
        return replace(self, defined=self.defined | set(names), rebound_current=rebound)


def less_bound(variables: Mapping[str, Any], bound: Mapping[str, Any]) -> Mapping[str, Any]:
    """The variables without those that are bound at evaluation time."""
    if bound.keys().isdisjoint(variables.keys()):  # iterates over the smaller one
        return variables
    left = copy(variables)  # the copy may compute more variables on demand
    assert isinstance(left, dict)
    for name in bound:
        left.pop(name, None)
    return left


def with_more(variables: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The variables, and more of them."""
    copied = copy(variables)  # the copy may compute more variables on demand
    assert isinstance(copied, dict)
    copied.update(more)
    return copied


class Expression:
    """A node of a parsed expression."""

    __slots__ = ()

    def optimized(self) -> Expression:
        """The node with constant subexpressions evaluated. Raises the `CommandError` of their evaluation."""
        return self

    def compiled(self) -> Evaluate:
        """Return a function of an `Env` that returns the value, or MISSING if there is none."""
        raise NotImplementedError

    def fields(self) -> set[str] | None:
        """Names of the top-level fields of the root document that the node may read; None if it may read any."""
        return set()


_LONG: Final = frozenset({bytes, list, str})


class Constant(Expression):
    """A value that is the same for every document."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def compiled(self) -> Evaluate:
        value = self.value
        return lambda env: value


NULL: Final = Constant(None)
ABSENT: Final = Constant(MISSING)


@dataclass(frozen=True, slots=True)
class Operator:
    """How a call is optimized and compiled.

    `make` takes a closure for each operand (None for an absent optional operand) and returns the closure of the call.
    `folds`: a call with only constant operands is evaluated at parse time. `associative_alone` is False if a single
    operand has another meaning (the elements of an array). Such a call is neither merged nor flattened. `simplify` is
    applied to a call after its operands are optimized, unless it became a constant.
    """

    name: str
    make: Callable[..., Evaluate]
    folds: bool = True
    associative: bool = False
    commutative: bool = False
    associative_alone: bool = True
    simplify: Callable[[Call], Expression] | None = None


class Call(Expression):
    """An operator applied to operands. An absent optional operand is None."""

    __slots__ = ("operands", "operator")

    def __init__(self, operator: Operator, operands: Sequence[Expression | None]) -> None:
        self.operator = operator
        self.operands = list(operands)

    def compiled(self) -> Evaluate:
        return self.operator.make(*[None if o is None else o.compiled() for o in self.operands])

    def fields(self) -> set[str] | None:
        names: set[str] = set()
        for operand in self.operands:
            if operand is not None:
                fields = operand.fields()
                if fields is None:
                    return None
                names |= fields
        return names

    def optimized(self) -> Expression:
        node: Expression = Call(self.operator, [None if o is None else o.optimized() for o in self.operands])
        if self.operator.folds and isinstance(node, Call):
            node = node.with_constants_folded()
        if isinstance(node, Call) and self.operator.simplify is not None:
            return self.operator.simplify(node)
        return node

    @property
    def is_associative(self) -> bool:
        """Whether the call may be merged with calls of the same operator among its operands."""
        return self.operator.associative and (self.operator.associative_alone or len(self.operands) > 1)

    def with_constants_folded(self) -> Expression:
        """This call, whose operands are optimized, as one constant or with its constants merged."""
        if all(o is None or type(o) is Constant for o in self.operands):
            constant = self.evaluated()
            # A paused command would hold a long constant.
            is_long = type(constant.value) in _LONG and len(constant.value) > limits.CONSTANT_LENGTH_MAX
            return self if is_long else constant
        if self.is_associative:
            return Call(self.operator, self._merged_operands())
        return self

    def evaluated(self) -> Constant:
        """The value of the call, whose operands must be constants. Raises the errors of the operator."""
        return Constant(self.compiled()(Env({})))

    def _merged_operands(self) -> list[Expression | None]:
        merged: list[Expression | None] = []
        constants: list[Expression | None] = []

        def flush() -> None:
            if len(constants) > 1:
                merged.append(Call(self.operator, constants).evaluated())
            else:
                merged.extend(constants)
            constants.clear()

        for operand in self._flattened():
            if type(operand) is Constant:
                constants.append(operand)
                continue
            if not self.operator.commutative:
                flush()
            merged.append(operand)
        flush()
        return merged

    def _flattened(self) -> list[Expression | None]:
        flat: list[Expression | None] = []
        for operand in self.operands:
            if isinstance(operand, Call) and operand.operator.name == self.operator.name and operand.is_associative:
                flat.extend(operand.operands)
            else:
                flat.append(operand)
        return flat


class CompiledExpression:
    """A parsed expression. Call it with an `Env` to get a value or MISSING. Hot loops use `evaluate`."""

    __slots__ = ("evaluate", "node")

    def __init__(self, node: Expression) -> None:
        self.node = node
        """The optimized tree."""
        self.evaluate: Evaluate = limited(node.compiled())

    def __call__(self, env: Env) -> Any:
        return self.evaluate(env)

    @property
    def is_constant(self) -> bool:
        """Whether the value is the same for every document."""
        return type(self.node) is Constant

    def fields(self) -> set[str] | None:
        """Names of the top-level fields of the root document that the expression may read; None if it may read any."""
        return self.node.fields()


def optimized(node: Expression) -> Expression:
    """The optimized node. An error of a constant subexpression is raised with the server's prefix."""
    try:
        return node.optimized()
    except CommandError as error:
        raise error.behind(FOLDING_PREFIX) from None


DBREF_FIELDS: Final = frozenset({"$db", "$id", "$ref"})
AT_EVALUATION: Final = ("CLUSTER_TIME", "NOW", "USER_ROLES")
_OF_SEARCH: Final = ("JS_SCOPE", "IS_MR", "SEARCH_META", "SEARCH_SCORE")


class FieldPathExpression(Expression):
    """A path in the root document. Without steps, it is the document itself."""

    __slots__ = ("steps",)

    def __init__(self, steps: tuple[str, ...]) -> None:
        self.steps = steps

    def fields(self) -> set[str] | None:
        return {self.steps[0]} if self.steps else None

    def compiled(self) -> Evaluate:
        steps = self.steps
        if not steps:
            return lambda env: env.root
        if len(steps) == 1:
            name = steps[0]
            return lambda env: env.root.get(name, MISSING)
        return lambda env: get_path(env.root, steps)


class VariableExpression(Expression):
    """A path in a variable that is bound at evaluation time. Raises 51144 if the variable is not bound."""

    __slots__ = ("name", "steps")

    def __init__(self, name: str, steps: tuple[str, ...]) -> None:
        self.name = name
        self.steps = steps

    def compiled(self) -> Evaluate:
        name, steps = self.name, self.steps
        if not steps:
            return lambda env: _bound(env, name)
        return lambda env: get_path(_bound(env, name), steps)


def _bound(env: Env, name: str) -> Any:
    try:
        return env.variables[name]
    except KeyError:
        raise CommandError(51144, f"Builtin variable '$${name}' is not available") from None


def parse_path(text: str, context: ParseContext) -> Expression:
    """The expression of a string that begins with "$". Raises 16872 for "$", 17276 for an undefined variable."""
    if text.startswith("$$"):
        name, dot, rest = text[2:].partition(".")
        check_variable_name(name, for_writing=False)
        steps = checked_path(rest) if dot else ()
        return _variable(name, steps, context)
    if len(text) == 1:
        raise CommandError(16872, "'$' by itself is not a valid FieldPath")
    return _current(checked_path(text[1:]), context)


def _current(steps: tuple[str, ...], context: ParseContext) -> Expression:
    return VariableExpression("CURRENT", steps) if context.rebound_current else FieldPathExpression(steps)


def _variable(name: str, steps: tuple[str, ...], context: ParseContext) -> Expression:
    if name == "CURRENT":
        return _current(steps, context)
    if name == "ROOT":
        return FieldPathExpression(steps)
    if name == "REMOVE":
        return ABSENT
    if name in context.defined:
        return VariableExpression(name, steps)
    if name in context.constants:
        return Constant(get_path(context.constants[name], steps))
    if name in AT_EVALUATION:
        return VariableExpression(name, steps)
    if name in _OF_SEARCH:
        raise CommandError(51144, f"Builtin variable '$${name}' is not available")
    raise CommandError(17276, f"Use of undefined variable: {name}")


def checked_path(path: str) -> tuple[str, ...]:
    """The field names of a dotted path. Raises 40352, 40353, 15998, 16410, 16411, 15 for an invalid FieldPath."""
    if not path:
        raise CommandError(40352, "FieldPath cannot be constructed with empty string")
    if path.endswith("."):
        raise CommandError(40353, "FieldPath must not end with a '.'.")
    steps = tuple(path.split("."))
    check_length(steps, 15)
    for name in steps:
        check_field_name(name)
    return steps


def check_length(steps: tuple[str, ...], code: int) -> None:
    """Raise `code` for a path longer than any document is deep."""
    if len(steps) > limits.PATH_COMPONENT_COUNT_MAX:
        raise CommandError(code, "FieldPath is too long")


def check_field_name(name: str) -> None:
    """Raise 15998, 16410, 16411 or 16412 unless `name` may be one step of a field path. The fields of a DBRef may."""
    if not name:
        raise CommandError(15998, "FieldPath field names may not be empty strings.")
    if name[0] == "$" and name not in DBREF_FIELDS:
        raise CommandError(
            16410,
            f"FieldPath field names may not start with '$'. Consider using $getField or $setField. Found: '{name}'",
        )
    if "\0" in name:
        raise CommandError(16411, "FieldPath field names may not contain '\\0'.")
    if "." in name:
        raise CommandError(16412, "FieldPath field names may not contain '.'. Consider using $getField or $setField.")


def check_variable_name(name: str, *, for_writing: bool) -> None:
    """Raise 9 unless `name` may be a variable's name, to refer to or (`for_writing`) to define."""
    if not name:
        raise CommandError(9, "empty variable names are not allowed")
    if for_writing and name == "CURRENT":
        return
    first = name[0]
    fits = first >= "\x80" or (first.islower() if for_writing else first.isalpha())
    if not fits:
        raise CommandError(9, f"'{name}' starts with an invalid character for a user variable name")
    for letter in name[1:]:
        if not (letter >= "\x80" or letter.isalnum() or letter == "_"):
            raise CommandError(9, f"'{name}' contains an invalid character for a variable name: '{letter}'")


_PLAIN: Final = ParseContext()


def parse_expression(value: Any, context: ParseContext | None = None) -> CompiledExpression:
    """The expression of a value. Raises the `CommandError` of an invalid one, and of its constant subexpressions."""
    return CompiledExpression(optimized(parse_operand(value, context or _PLAIN)))


def parse_operand(value: Any, context: ParseContext) -> Expression:
    """The expression of an operand, not optimized."""
    if type(value) is str and value.startswith("$"):
        return parse_path(value, context)
    if type(value) is dict:
        return parse_object(value, context)
    if type(value) is list:
        return Call(_ARRAY, [parse_operand(item, context) for item in value])
    return Constant(checked_text(value) if type(value) is str else value)


def parse_object(document: dict[str, Any], context: ParseContext) -> Expression:
    """The expression of an object: an operator, or computed fields. Raises 15983 for an operator among fields."""
    first = next(iter(document), "")
    if first.startswith("$"):
        if len(document) != 1:
            names = ", ".join(f"{name}: ..." for name in document)
            raise CommandError(
                15983, f"an object representing an expression must have exactly one field: {{ {names} }}"
            )
        return parse_operator(first, document[first], context)
    for name in document:
        check_field_name(name)
    operands = [parse_operand(item, context) for item in document.values()]
    return Call(_object(tuple(document)), operands)


def parse_operator(name: str, argument: Any, context: ParseContext) -> Expression:
    """The expression `{name: argument}`. Raises 168 for an unknown operator, its own code for an unsupported one."""
    from headrace.query.expressions.operator_table import OPERATORS, UNSUPPORTED  # the families import this file

    parse = OPERATORS.get(name)
    if parse is not None:
        return parse(argument, context)
    if name in UNSUPPORTED:
        code, message = UNSUPPORTED[name]
        raise CommandError(code, message)
    raise CommandError(168, f"Unrecognized expression '{name}'")


def _make_array(*items: Evaluate) -> Evaluate:
    def evaluate(env: Env) -> list[Any]:
        return [None if (value := item(env)) is MISSING else value for item in items]

    return evaluate


_ARRAY: Final = Operator("array", _make_array)


def _object(names: tuple[str, ...]) -> Operator:
    def make(*items: Evaluate) -> Evaluate:
        pairs = tuple(zip(names, items))

        def evaluate(env: Env) -> dict[str, Any]:
            return {name: value for name, item in pairs if (value := item(env)) is not MISSING}

        return evaluate

    return Operator("object", make)
