"""`$densify`: makes documents for the missing values between existing ones.

    {field: "t", partitionByFields: ["k"], range: {step: 1, unit: "hour", bounds: "full"}}

Rule: bounds "partition" fill each partition between its own least and greatest value. Bounds "full" fill each partition
between the least and greatest value of all documents. `[lower, upper)` are explicit bounds. Documents whose field is
null or missing pass first, unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from bson import Decimal128, Int64
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.limits import DENSIFY_COUNT_MAX
from headrace.query.expressions.dates import UNITS, shifted
from headrace.query.expressions.expression import checked_path
from headrace.query.expressions.numbers import integral, is_nan, to_long
from headrace.query.operation_memory import StageMemory, size_of
from headrace.query.options import ANY, NUMBER, check_object, check_options, check_type
from headrace.query.stages.reshaping import nested, with_nested
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.values.bson import MISSING, type_name
from headrace.values.order import compare, hash_key, sort_key

_NUMBERS: Final = (int, Int64, float, Decimal128)


@dataclass(frozen=True, slots=True)
class Densify(Stage):
    """Fills `path`; `bounds` is "full", "partition", or the pair of lower (inclusive) and upper (exclusive) bound."""

    name: str
    spec: Any
    path: tuple[str, ...]
    partition_paths: tuple[tuple[str, ...], ...]
    step: Any
    unit: str | None
    bounds: str | tuple[Any, Any]
    context: PipelineContext

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """The documents sorted by partition and field, with the new documents between them. Reads all input first.

        Raises 6007200 if there are more documents than the stage may hold.
        """
        with self.context.memory.stage(self.name) as memory:
            yield from self._densified(documents, memory)

    def _densified(self, documents: Iterator[Document], memory: StageMemory) -> Iterator[Document]:
        partitions: dict[Any, list[tuple[Any, int, Document]]] = {}
        values: list[Any] = []
        for document in documents:
            value = nested(document, self.path)
            if value is MISSING or value is None:
                yield document
                continue
            self._check(value)
            memory.add(size_of(document))
            memory.check(6007200, lambda most: f"$densify exceeded its memory limit of {most} bytes")
            values.append(value)
            partitions.setdefault(hash_key(self._partition(document)), []).append(
                (sort_key(value), len(values), document)
            )
        if not partitions and type(self.bounds) is tuple and not self.partition_paths:
            partitions[None] = []
        limits = (min(values, key=sort_key), max(values, key=sort_key)) if values else None
        made = 0
        for members in partitions.values():
            members.sort()
            for document, is_made in self._filled([document for *_, document in members], limits):
                made += is_made
                if made > DENSIFY_COUNT_MAX:
                    raise CommandError(5897900, f"Generated {made} documents in $densify, which is over the limit")
                yield document

    def _filled(self, members: list[Document], limits: tuple[Any, Any] | None) -> Iterator[tuple[Document, bool]]:
        present = [(nested(document, self.path), document) for document in members]
        if type(self.bounds) is tuple:
            lower, upper, inclusive = self.bounds[0], self.bounds[1], False
        elif self.bounds == "full" and limits is not None:
            lower, upper, inclusive = limits[0], limits[1], True
        else:
            lower, upper, inclusive = present[0][0], present[-1][0], True
        keys = self._partition_fields(members)
        index, count = 0, 0
        value = lower
        while compare(value, upper) < 0 or (inclusive and compare(value, upper) == 0):
            while index < len(present) and compare(present[index][0], value) < 0:
                yield present[index][1], False
                index += 1
            if index < len(present) and compare(present[index][0], value) == 0:
                while index < len(present) and compare(present[index][0], value) == 0:
                    yield present[index][1], False
                    index += 1
            else:
                yield with_nested(keys, self.path, value), True
            count += 1
            value = self._stepped(lower, count)
        for _, document in present[index:]:
            yield document, False

    def _partition(self, document: Document) -> list[Any]:
        return [nested(document, path) for path in self.partition_paths]

    def _partition_fields(self, members: list[Document]) -> Document:
        """The first fields of a new document in the partition."""
        made: Document = {}
        for path in self.partition_paths:
            value = nested(members[0], path)
            if value is not MISSING:
                made = with_nested(made, path, value)
        return made

    def _stepped(self, lower: Any, count: int) -> Any:
        if self.unit is not None:
            return shifted(lower, self.unit, to_long(self.step) * count)
        if Decimal128 in (type(lower), type(self.step)):
            return Decimal128(str(_decimal(lower) + _decimal(self.step) * count))
        value = lower + self.step * count
        if type(value) is float:
            return value
        return Int64(value) if Int64 in (type(lower), type(self.step)) or not -(2**31) <= value < 2**31 else int(value)

    def _check(self, value: Any) -> None:
        if self.unit is None and type(value) not in _NUMBERS:
            raise CommandError(5733201, f"Densify field type must be numeric, not {type_name(value)}")
        if self.unit is not None and type(value) is not DatetimeMS:
            raise CommandError(6053600, f"Densify field type must be date, not {type_name(value)}")


def _decimal(value: Any) -> Any:
    from decimal import Decimal

    return value.to_decimal() if type(value) is Decimal128 else Decimal(str(value))


def parse_densify(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$densify: {field, partitionByFields, range: {step, unit, bounds}}}`."""
    types = {"field": "string", "partitionByFields": "array", "range": "object"}
    check_object(spec, 9, "The $densify stage specification must be an object, found")
    check_options(name, spec, types, ["field", "range"])
    extent, fields = spec["range"], spec.get("partitionByFields", [])
    check_options(f"{name}.range", extent, {"bounds": ANY, "step": NUMBER, "unit": "string?"}, ["bounds", "step"])
    for item in fields:
        check_type(f"{name}.partitionByFields", item, "string")
    step, unit = extent["step"], extent.get("unit")
    path, *paths = (checked_path(item) for item in [spec["field"], *fields])
    for other in paths:
        if path == other[: len(path)]:
            raise CommandError(8993000, "BSON field 'partitionByFields' contains the field that is being densified")
        if other == path[: len(other)]:
            raise CommandError(9554500, "The field that is being densified contains a field of 'partitionByFields'")
    if is_nan(_decimal(step)) or _decimal(step) <= 0:
        raise CommandError(5733401, "the step parameter in a range statement must be a strictly positive numeric value")
    if unit is not None:
        _check_unit(unit, step)
    bounds = _bounds(extent["bounds"], unit, fields)
    return (Densify(name, spec, path, tuple(paths), step, unit, bounds, context),)


def _check_unit(unit: Any, step: Any) -> None:
    if unit not in UNITS:
        raise CommandError(9, f"unknown time unit value: {unit}")
    if integral(step) is None:
        raise CommandError(
            6586400, "The step parameter in a range satement must be a whole number when densifying a date range"
        )


def _bounds(value: Any, unit: str | None, fields: list[str]) -> str | tuple[Any, Any]:
    if type(value) is str:
        if value not in ("full", "partition"):
            raise CommandError(5946802, "Bounds string must either be 'full' or 'partition'")
        if value == "partition" and not fields:
            raise CommandError(5733408, "one may not specify the bounds as 'partition' without partitionByFields")
        return value
    if type(value) is not list:
        raise CommandError(
            5733403, "the bounds in a range statement must be the string 'full', 'partition', or an array"
        )
    if len(value) != 2:
        raise CommandError(5733403, "a bounding array in a range statement must have exactly two elements")
    if type(value[0]) in _NUMBERS:
        if type(value[1]) not in _NUMBERS:
            raise CommandError(5733406, "a bounding array must contain either both dates or both numeric types")
        if unit is not None:
            raise CommandError(5733409, "numeric bounds may not have unit parameter")
    elif any(type(bound) is not DatetimeMS for bound in value) or unit is None:
        raise CommandError(
            5733402, "a bounding array must be an ascending array of two numbers, or two dates with a unit"
        )
    if compare(value[0], value[1]) > 0:
        raise CommandError(5733402, "the lower bound must not exceed the upper bound")
    return value[0], value[1]
