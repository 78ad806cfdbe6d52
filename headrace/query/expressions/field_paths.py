"""Field paths and variables: "$a.b", "$$name.a.b".

Rule: a path applied to an array is applied to each object in the array, and other elements are ignored. A number in a
path is a field name, never an index. Paths of filters differ: see `values/paths.py`.
"""

from __future__ import annotations

from typing import Any, Final

from headrace import limits
from headrace.errors import CommandError
from headrace.query.expressions.expression import ABSENT, Constant, Env, Evaluate, Expression, ParseContext
from headrace.values.bson import MISSING
from headrace.values.paths import get_path

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
