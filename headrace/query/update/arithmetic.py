"""Arithmetic operators: $bit, $inc, $mul.

Rule: the result has the wider type of the two (int < long < double < decimal). An int that overflows becomes a long; a
long that overflows is an error. A double is converted to a decimal with 15 digits. A result equal in value and type to
the old value is a no-op, so -0.0 does not replace 0.0.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from bson import Decimal128, Int64

from headrace.errors import CommandError
from headrace.query.expressions.numbers import (
    CONTEXT,
    INT32_MAX,
    INT32_MIN,
    NUMBERS,
    decimal_of,
    fits_long,
    int_or_long,
    wrap,
)
from headrace.query.update.leaf_node import NO_OP, ApplyParams, FieldRef, UpdateLeafNode
from headrace.query.update.message_text import element_text, id_text
from headrace.values.bson import MISSING, type_name
from headrace.values.bson.to_string import to_string


class ArithmeticNode(UpdateLeafNode):
    """$inc and $mul by `by`. `compute` works on Python numbers; `decimal` names the method of a decimal context."""

    __slots__ = ("by", "compute", "decimal", "name")

    def __init__(self, name: str, by: Any, compute: Callable[[Any, Any], Any], decimal: str) -> None:
        super().__init__()
        self.name = name
        self.by = by
        self.compute = compute
        self.decimal = decimal

    def change(self, old: Any, params: ApplyParams, path: FieldRef) -> Any:
        if old is MISSING:
            return self.by if self.name == "$inc" else self.result(0, params)
        kind = type(old)
        if kind is int and type(self.by) is int:
            value = self.compute(old, self.by)
            if not INT32_MIN <= value <= INT32_MAX:
                return Int64(value)
            return NO_OP if value == old else value
        if kind not in NUMBERS:
            raise CommandError(
                14,
                f"Cannot apply {self.name} to a value of non-numeric type. {{{id_text(params.document)}}} "
                f"has the field '{path[-1]}' of non-numeric type {type_name(old)}",
            )
        value = self.result(old, params)
        return NO_OP if type(value) is kind and _same_number(value, old) else value

    def result(self, old: Any, params: ApplyParams) -> Any:
        """The new value of a field that holds the number `old`. Raises 2 if a long overflows."""
        kinds = {type(old), type(self.by)}
        if Decimal128 in kinds:
            return wrap(getattr(CONTEXT, self.decimal)(decimal_of(old), decimal_of(self.by)))
        if float in kinds:
            return self.compute(float(old), float(self.by))
        value = self.compute(int(old), int(self.by))
        if fits_long(value):
            return int_or_long(value) if kinds == {int} else Int64(value)
        raise CommandError(
            2,
            f"Failed to apply {self.name} operations to current value ({_typed(old)}) "
            f"for document {{{id_text(params.document)}}}",
        )


def _same_number(left: Any, right: Any) -> bool:
    if type(left) is Decimal128:
        return bool(left.to_decimal() == right.to_decimal())
    return bool(left == right)


def _typed(number: Any) -> str:
    return f"({'NumberLong' if type(number) is Int64 else 'NumberInt'}){to_string(number)}"


class BitNode(UpdateLeafNode):
    """$bit: applies the operations in order; a missing field counts as int 0."""

    __slots__ = ("operations",)

    def __init__(self, operations: tuple[tuple[Callable[[Any, Any], Any], Any], ...]) -> None:
        super().__init__()
        self.operations = operations

    def change(self, old: Any, params: ApplyParams, path: FieldRef) -> Any:
        kind = int if old is MISSING else type(old)
        if kind is not int and kind is not Int64:
            raise CommandError(
                2,
                f"Cannot apply $bit to a value of non-integral type.{id_text(params.document)} "
                f"has the field {path[-1]} of non-integer type {type_name(old)}",
            )
        number = 0 if old is MISSING else int(old)
        for compute, operand in self.operations:
            number = compute(number, int(operand))
            if type(operand) is Int64:
                kind = Int64
        if old is not MISSING and kind is type(old) and number == old:
            return NO_OP
        return kind(number)


_BITWISE: Final = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


def parse_bit(field: str, argument: Any, collation: Any) -> UpdateLeafNode:
    """The leaf of {$bit: {field: {and | or | xor: integer}}}. Raises 2 for any other argument."""
    if type(argument) is not dict:
        raise CommandError(
            2,
            f"The $bit modifier is not compatible with a {type_name(argument)}. "
            "You must pass in an embedded document: {$bit: {field: {and/or/xor: #}}",
        )
    operations = []
    for name, operand in argument.items():
        if name not in _BITWISE:
            raise CommandError(
                2,
                f"The $bit modifier only supports 'and', 'or', and 'xor', not '{name}' which is an unknown operator: "
                f"{{{element_text(field, argument)}}}",
            )
        if type(operand) is not int and type(operand) is not Int64:
            raise CommandError(
                2,
                f"The $bit modifier field must be an Integer(32/64 bit); a '{type_name(operand)}' "
                f"is not supported here: {{{element_text(name, operand)}}}",
            )
        operations.append((_BITWISE[name], operand))
    if not operations:
        raise CommandError(
            2,
            "You must pass in at least one bitwise operation. The format is: {$bit: {field: {and/or/xor: #}}",
        )
    return BitNode(tuple(operations))


def parse_inc(field: str, argument: Any, collation: Any) -> UpdateLeafNode:
    """The leaf of {$inc: {field: number}}. Raises 14 for an argument that is not a number."""
    if type(argument) not in NUMBERS:
        raise CommandError(14, f"Cannot increment with non-numeric argument: {{{element_text(field, argument)}}}")
    return ArithmeticNode("$inc", argument, operator.add, "add")


def parse_mul(field: str, argument: Any, collation: Any) -> UpdateLeafNode:
    """The leaf of {$mul: {field: number}}. Raises 14 for an argument that is not a number."""
    if type(argument) not in NUMBERS:
        raise CommandError(14, f"Cannot multiply with non-numeric argument: {{{element_text(field, argument)}}}")
    return ArithmeticNode("$mul", argument, operator.mul, "multiply")
