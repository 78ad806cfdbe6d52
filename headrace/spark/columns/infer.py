"""Schemas inferred from documents and validators, and how a schema grows with new documents.

An unknown field becomes a column. A column of numbers widens, int → bigint → double → decimal, and to a string if the
rules allow it. No column narrows. A value that fits no column stays in the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bson import Decimal128

from headrace import limits
from headrace.spark.columns.column_types import (
    NUMBERS,
    ArrayOf,
    ColumnType,
    LeafType,
    MapOf,
    Primitive,
    StructField,
    StructOf,
    column_name,
    leaf,
    leaf_count,
)
from headrace.spark.columns.document_columns import note_of

_BY_NOTE: Final = {
    "binary": "binary", "bool": "boolean", "date": "timestamp", "double": "double", "int": "int", "long": "bigint",
    "objectId": "objectId", "string": "string", "uuid": "uuid",
}  # fmt: skip
_SCALES: Final = (0, 2, 4, 10, 18)
_DOUBLE_SCALE: Final = 10
_MAP_NAMES_MIN: Final = 32
_MAP_SHARE_MAX: Final = 0.5


@dataclass(frozen=True, slots=True)
class ColumnRules:
    """Rules for new columns: which objects are flattened, which names differ from the default, and what may evolve."""

    evolve: str = "widen"
    """The changes that a schema makes automatically.

    `none`; `add`: new columns; `widen`: also wider numbers; `text`: also text in place of numbers.
    """
    flatten: frozenset[tuple[str, ...]] | None = frozenset()
    """Paths of flattened objects; None: all objects."""
    rename: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    reserved: frozenset[str] = frozenset()
    """Names of the table's own columns, in lower case."""

    def flattens(self, path: tuple[str, ...]) -> bool:
        """Whether the fields of the object at the path are columns of the table."""
        return self.flatten is None or path in self.flatten


def infer_schema(documents: Iterable[Mapping[str, Any]], rules: ColumnRules) -> StructOf:
    """Return the schema of the documents: all their fields; objects whose names keep changing are maps."""
    sample = list(documents)
    schema = StructOf(())
    growing = replace(rules, evolve="widen")
    for document in sample:
        schema = grown(schema, document, replace(growing, flatten=frozenset()))
    names: dict[tuple[str, ...], _NameCounts] = {}
    for document in sample:
        _count_names(document, (), names)
    maps = {path for path, counted in names.items() if path and counted.open_ended}
    fields: tuple[StructField, ...] = ()
    for each in schema.fields:
        fields = _added(fields, each.path, _with_maps(each.type, each.path, maps), growing)
    return StructOf(fields)


def grown(schema: StructOf, rest: Mapping[str, Any], rules: ColumnRules) -> StructOf:
    """Return the table's schema, extended for the rest of a document, or for a document."""
    if rules.evolve == "none":
        return schema
    fields = schema.fields
    for name, value in rest.items():
        fields = _grown_at(fields, (name,), value, rules)
    return schema if fields == schema.fields else StructOf(fields)


def merged(schema: StructOf, other: StructOf, rules: ColumnRules) -> StructOf:
    """Return the schema with the fields of the other one that it lacks."""
    fields = schema.fields
    for each in other.fields:
        if each.type is not None:
            fields = _united_at(fields, each.path, each.type, rules)
    return StructOf(fields)


def validator_schema(validator: Mapping[str, Any], rules: ColumnRules) -> StructOf:
    """Return the schema that a collection's `$jsonSchema` describes; fields whose type it leaves open are omitted."""
    fields: tuple[StructField, ...] = ()
    for name, described in (validator.get("properties") or {}).items():
        kind = _described_type(described)
        if kind is not None:
            fields = _added(fields, (name,), kind, rules)
    return StructOf(fields)


def united(kind: ColumnType, other: ColumnType, rules: ColumnRules) -> ColumnType:
    """Return `kind`, widened if it then holds values of `other`; otherwise unchanged."""
    if isinstance(kind, LeafType):
        return _united_leaf(kind, other, rules) if isinstance(other, LeafType) else kind
    if isinstance(kind, StructOf) and isinstance(other, StructOf):
        fields = kind.fields
        for each in other.fields:
            if each.type is not None:
                fields = _united_at(fields, each.path, each.type, rules, nested=True)
        return StructOf(fields)
    if isinstance(kind, ArrayOf) and isinstance(other, ArrayOf):
        return ArrayOf(united(kind.item, other.item, rules))
    if isinstance(kind, MapOf) and isinstance(other, StructOf):
        value = kind.value
        for each in other.fields:
            if each.type is not None:
                value = united(value, each.type, rules)
        return MapOf(value)
    return (
        MapOf(united(kind.value, other.value, rules)) if isinstance(kind, MapOf) and isinstance(other, MapOf) else kind
    )


def _grown_at(
    fields: tuple[StructField, ...], path: tuple[str, ...], value: Any, rules: ColumnRules
) -> tuple[StructField, ...]:
    """Return the fields, extended for the value at the path, which may be in a flattened object."""
    inside = any(each.path[: len(path)] == path and len(each.path) > len(path) for each in fields)
    if type(value) is dict and inside:
        for name, item in value.items():
            fields = _grown_at(fields, (*path, name), item, rules)
        return fields
    kind = None if inside else _infer(value, rules, len(path))
    return fields if kind is None else _united_at(fields, path, kind, rules)


def _united_at(
    fields: tuple[StructField, ...],
    path: tuple[str, ...],
    kind: ColumnType,
    rules: ColumnRules,
    *,
    nested: bool = False,
) -> tuple[StructField, ...]:
    for number, each in enumerate(fields):
        if each.path == path:
            if each.type is None or rules.evolve == "none":
                return fields
            changed = replace(each, type=united(each.type, kind, rules))
            return fields if changed == each else (*fields[:number], changed, *fields[number + 1 :])
        if each.path == path[: len(each.path)] or each.path[: len(path)] == path:
            if isinstance(kind, StructOf) and len(each.path) > len(path):
                for inner in kind.fields:
                    if inner.type is not None:
                        fields = _united_at(fields, (*path, *inner.path), inner.type, rules)
            return fields
    return fields if rules.evolve == "none" else _added(fields, path, kind, rules, nested=nested)


def _added(
    fields: tuple[StructField, ...], path: tuple[str, ...], kind: ColumnType | None, rules: ColumnRules,
    *, nested: bool = False,
) -> tuple[StructField, ...]:  # fmt: skip
    """Return the fields with a new one at the end, or with an object's fields if it is flattened; within the limits."""
    if kind is None:
        return fields
    if not nested and isinstance(kind, StructOf) and rules.flattens(path):
        for inner in kind.fields:
            fields = _added(fields, (*path, *inner.path), inner.type, rules)
        return fields
    count = 1 + len(fields) if nested else leaf_count(kind) + sum(leaf_count(each.type) for each in fields)
    if count > (limits.STRUCT_FIELD_COUNT_MAX if nested else limits.TYPED_COLUMN_COUNT_MAX):
        return fields
    taken = {each.column.lower() for each in fields} | (set() if nested else rules.reserved)
    wanted = None if nested else rules.rename.get(path)
    return (*fields, StructField(path, column_name(path, taken, wanted), kind))


def _infer(value: Any, rules: ColumnRules, depth: int) -> ColumnType | None:
    if depth > limits.TYPED_DEPTH_MAX:
        return None
    if type(value) is dict:
        fields: tuple[StructField, ...] = ()
        for name, item in value.items():
            fields = _added(fields, (name,), _infer(item, rules, depth + 1), rules, nested=True)
        return StructOf(fields) if fields else None
    if type(value) is list:
        return _infer_array(value, rules, depth)
    if type(value) is Decimal128:
        return _infer_decimal(value)
    note = note_of(value)
    return None if note is None else leaf(_BY_NOTE[note])


def _infer_array(items: list[Any], rules: ColumnRules, depth: int) -> ArrayOf | None:
    item: ColumnType | None = None
    for each in items[: limits.TYPED_SAMPLE_COUNT_MAX]:
        kind = None if each is None else _infer(each, rules, depth + 1)
        if (kind is None and each is not None) or (kind and item and _is_number(kind) != _is_number(item)):
            return None
        if kind is not None:
            item = kind if item is None else united(item, kind, replace(rules, evolve="widen"))
    return None if item is None else ArrayOf(item)


def _is_number(kind: ColumnType) -> bool:
    return isinstance(kind, LeafType) and kind.stored.name in NUMBERS


def _infer_decimal(value: Decimal128) -> LeafType | None:
    number = value.to_decimal()
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or -exponent > _SCALES[-1]:
        return None
    scale = next(scale for scale in _SCALES if scale >= -exponent)
    return leaf("decimal", 38, scale) if len(number.as_tuple().digits) + exponent <= 38 - scale else None


def _united_leaf(kind: LeafType, other: LeafType, rules: ColumnRules) -> LeafType:
    stored, wanted = kind.stored, other.natural
    if rules.evolve not in {"widen", "text"} or stored.name not in NUMBERS:
        return kind
    if wanted.name == "string" and kind.natural.name in NUMBERS and rules.evolve == "text":
        return replace(kind, stored=Primitive("string"))
    if wanted.name not in NUMBERS:
        return kind
    if wanted.name == "decimal" and stored.name in {"double", "float"}:
        return replace(kind, stored=Primitive("decimal", 38, max(wanted.scale, _DOUBLE_SCALE)))
    if wanted.name == "decimal" or stored.name == "decimal":
        scale = max(stored.scale, wanted.scale, _DOUBLE_SCALE if wanted.name == "double" else 0)
        return replace(kind, stored=Primitive("decimal", 38, scale))
    if NUMBERS.index(wanted.name) > NUMBERS.index(stored.name):
        return replace(kind, stored=Primitive(wanted.name))
    return kind


@dataclass(slots=True)
class _NameCounts:
    objects: int = 0
    names: Counter[str] = field(default_factory=Counter)

    @property
    def open_ended(self) -> bool:
        count = len(self.names)
        return count >= _MAP_NAMES_MIN and self.names.total() < _MAP_SHARE_MAX * self.objects * count


def _count_names(value: Any, path: tuple[str, ...], counted: dict[tuple[str, ...], _NameCounts]) -> None:
    if type(value) is dict and len(path) <= limits.TYPED_DEPTH_MAX:
        here = counted.setdefault(path, _NameCounts())
        here.objects += 1
        here.names.update(value.keys())
        for name, item in value.items():
            _count_names(item, (*path, name), counted)


def _with_maps(kind: ColumnType | None, path: tuple[str, ...], maps: set[tuple[str, ...]]) -> ColumnType | None:
    if not isinstance(kind, StructOf):
        return kind
    fields = tuple(replace(each, type=_with_maps(each.type, (*path, *each.path), maps)) for each in kind.fields)
    if path not in maps:
        return StructOf(fields)
    types = [each.type for each in fields if each.type is not None]
    value = types[0]
    for each in types[1:]:
        value = united(value, each, ColumnRules())
    return MapOf(value)


_DESCRIBED: Final = {
    "binData": "binary", "bool": "boolean", "boolean": "boolean", "date": "timestamp", "decimal": "decimal",
    "double": "double", "int": "int", "integer": "bigint", "long": "bigint", "number": "double", "objectId": "objectId",
    "string": "string",
}  # fmt: skip


def _described_type(described: Any) -> ColumnType | None:
    """Return the type that a part of a `$jsonSchema` describes; None if it leaves the type open."""
    if not isinstance(described, Mapping):
        return None
    given = described.get("bsonType", described.get("type"))
    names = [name for name in (given if isinstance(given, list) else [given]) if name != "null"]
    name = names[0] if len(names) == 1 else None
    if name == "object":
        return _described_object(described)
    if name == "array":
        item = _described_type(described.get("items"))
        return None if item is None else ArrayOf(item)
    if name not in _DESCRIBED:
        return None
    return leaf(_DESCRIBED[name], 38, _DOUBLE_SCALE)


def _described_object(described: Mapping[str, Any]) -> ColumnType | None:
    fields: tuple[StructField, ...] = ()
    for name, inner in (described.get("properties") or {}).items():
        fields = _added(fields, (name,), _described_type(inner), ColumnRules(), nested=True)
    if fields:
        return StructOf(fields)
    value = _described_type(described.get("additionalProperties"))
    return None if value is None else MapOf(value)
