"""The schema of one typed table: its origin, its changes by the documents of a batch, and the file that people edit.

Each commit stores the schema of the rows. After a commit that changes the schema, it is written to a file next to the
table. If a user edits the file, the edited schema applies from the next start on, and the first commit adopts it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from bson import Int64, ObjectId
from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.durable_files import replace_file
from headrace.spark.columns.arrow_columns import ArrowColumns, columns_of, rest_count
from headrace.spark.columns.column_types import (
    ArrayOf,
    ColumnType,
    SchemaError,
    StructField,
    StructOf,
    column_name,
    file_text,
    is_edited,
    parse_path,
    parse_schema,
    schema_text,
)
from headrace.spark.columns.infer import ColumnRules, grown, infer_schema, merged, validator_schema
from headrace.spark.rows.extjson import loads

INFER: Final = "infer"
COLUMNS_KEY: Final = "headrace.columns"
"""The key, in the commit's metadata, of the schema of all rows as text."""
_RESERVED: Final = frozenset(
    "__batch_index __filename __fragment_index __last_in_fragment _bucket _confirmed _current _ended _endedby _gone "
    "_key _operationtype _rest _server _shape _since _token _until".split()
)
"""Names that columns of documents cannot have: the tables' own, and Arrow's names for properties of a file."""
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TypedOptions:
    """The settings of a typed table in a job.

    `schema` is `infer` or a schema's text. `file` is the file where users edit the schema, if any. `cluster` are the
    columns by which a compaction sorts.
    """

    schema: str = INFER
    file: str = ""
    rules: ColumnRules = field(default_factory=ColumnRules)
    partitions: tuple[PartitionColumn, ...] = ()
    cluster: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        reserved = _RESERVED | {each.name.lower() for each in self.partitions}
        object.__setattr__(self, "rules", replace(self.rules, reserved=reserved))


class SchemaChange(enum.Enum):
    """The change that a commit makes to the schema of the existing rows."""

    NONE = "none"
    ADDED = "added"
    """New columns, or new fields within columns, which are null in the existing rows."""
    REWRITTEN = "rewritten"


@dataclass(frozen=True, slots=True)
class TypedRows:
    """The documents of a commit as columns, the schema of the table after it, and the change of the schema."""

    columns: ArrowColumns
    arrays: list[pa.Array]
    change: SchemaChange
    rest_count: int


class TableSchema:
    """The schema of one table that is written."""

    def __init__(self, options: TypedOptions, title: str) -> None:
        self.options = options
        self.validator: Mapping[str, Any] = {}
        """The collection's `$jsonSchema`, if known."""
        self.rest_count = 0
        """The number of values put into the rest since this object was made."""
        self._title = title
        self._file = Path(options.file) if options.file else None
        self._edited = self._read_file()
        self._given = None if options.schema == INFER else parse_schema(options.schema, options.rules.reserved)
        self._parsed: tuple[str, StructOf] = ("", StructOf(()))

    def of(self, text: str) -> StructOf:
        """Return the schema from its text in a commit."""
        if self._parsed[0] != text:
            self._parsed = (text, parse_schema(text, self.options.rules.reserved))
        return self._parsed[1]

    def planned(self, stored: StructOf, texts: Sequence[str | None]) -> TypedRows:
        """Return the documents (or nulls) as columns of the stored schema, extended by what they add to it."""
        schema = wished = self._wished(stored, texts)
        columns = columns_of(schema)
        arrays, rests = columns.split_texts(texts)
        for rest in rests:
            schema = grown(schema, rest, self.options.rules)
        if schema is not wished:
            columns = columns_of(schema)
            arrays, rests = columns.split_texts(texts)
        return TypedRows(columns, arrays, change_of(stored, schema), rest_count(rests))

    def settled(self, stored: StructOf) -> bool:
        """Whether only documents can change the stored schema; False for a new table, whose schema the first documents
        define."""
        if not stored.fields or self._wished(stored, []) != stored:
            return False
        self._edited = self._given = None
        return True

    def committed(self, rows: TypedRows) -> None:
        """Note that the rows are committed. Write the file if the schema has changed or the file is missing."""
        self.rest_count += rows.rest_count
        self._edited = self._given = None
        if self._file is not None and (rows.change is not SchemaChange.NONE or not self._file.exists()):
            text = file_text(rows.columns.schema, self._title)
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._file, lambda path: path.write_text(text, encoding="utf-8"))

    def _read_file(self) -> StructOf | None:
        """Return the schema in the file, if a user has edited it. Raise SchemaError."""
        if self._file is None or not self._file.exists():
            return None
        text = self._file.read_text(encoding="utf-8")
        try:
            return parse_schema(text, self.options.rules.reserved) if is_edited(text) else None
        except SchemaError as error:
            raise SchemaError(f"{self._file}: {error}") from None

    def _wished(self, stored: StructOf, texts: Sequence[str | None]) -> StructOf:
        rules = self.options.rules
        if self._edited is not None:
            return _in_order(stored, self._edited)
        if self._given is not None:
            named = {each.path for each in self._given.fields}
            more = [each for each in stored.fields if each.path not in named]
            return _in_order(stored, StructOf((*self._given.fields, *more)))
        if stored.fields or self.options.schema != INFER:
            return stored
        wide = replace(rules, evolve="widen")
        described = validator_schema(self.validator, wide)
        given = (loads(text) for text in texts if text is not None)
        sample = infer_schema(islice(given, limits.TYPED_SAMPLE_COUNT_MAX), rules)
        return merged(described, sample, replace(rules, evolve="add")) if described.fields else sample


def rest_count_of(table: object) -> int:
    """Return the number of values that a table's writer has put into the rest; 0 without typed columns."""
    schema = getattr(table, "schema", None)
    return schema.rest_count if isinstance(schema, TableSchema) else 0


def change_of(stored: StructOf, schema: StructOf) -> SchemaChange:
    """Return the change from the stored schema to another one."""
    if stored == schema:
        return SchemaChange.NONE
    return SchemaChange.ADDED if _extends(stored, schema) else SchemaChange.REWRITTEN


def commit_metadata(schema: StructOf) -> dict[str, str]:
    """Return the part of a commit's metadata that describes the schema."""
    return {COLUMNS_KEY: schema_text(schema)}


def _in_order(stored: StructOf, wished: StructOf) -> StructOf:
    """Return the wished fields: first those already stored, in the stored order."""
    by_path = {each.path: each for each in wished.fields}
    there = [by_path[each.path] for each in stored.fields if each.path in by_path]
    paths = {each.path for each in there}
    return StructOf((*there, *(each for each in wished.fields if each.path not in paths)))


def _extends(old: ColumnType | None, new: ColumnType | None) -> bool:
    """Whether the new type can hold all values of the old type; fields only in the new type are null."""
    if isinstance(old, ArrayOf) and isinstance(new, ArrayOf):
        return _extends(old.item, new.item)
    if not (isinstance(old, StructOf) and isinstance(new, StructOf)):
        return old is None or old == new
    by_path: dict[tuple[str, ...], StructField] = {each.path: each for each in new.fields}
    for each in old.fields:
        other = by_path.get(each.path)
        if each.type is not None and (
            other is None or other.column != each.column or other.type is None or not _extends(each.type, other.type)
        ):
            return False
    return True


_FORMATS: Final = {"hour": "%Y-%m-%dT%H", "month": "%Y-%m"}
_UNITS: Final = ("day", "hour", "month", "year")
_TRANSFORM: Final = re.compile(r"\s*(\w+)\s*\((.*)\)\s*")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_VALUE: Final = "partition"
_PLAIN: Final = re.compile(rb"[\w-]+")
_FOLDER_BYTES_MAX: Final = 255
"""The most bytes in a folder's name, `partition_country=...`; no file system allows more."""


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """A partition column: the path of its value, and a unit of time, or `partition` for the value as text.

    It is by time, `day(created)` or `month(at)`, or by a value, `country`: a separate column, `day_created` or
    `partition_country`, computed from the document. It is null if the document lacks such a value, or if the value is
    too long for the name of a folder.
    """

    unit: str
    path: tuple[str, ...]

    @property
    def name(self) -> str:
        """The column's name."""
        return column_name((self.unit, *self.path), ())

    @property
    def type(self) -> pa.DataType:
        """The column's type."""
        return {"day": pa.date32(), "year": pa.int32()}.get(self.unit, pa.string())

    def value(self, document: dict[str, Any]) -> Any:
        """The column's value for a document."""
        value: Any = document
        for name in self.path:
            value = value.get(name) if type(value) is dict else None
        return self._text(value) if self.unit == _VALUE else self._time(value)

    def _time(self, value: Any) -> Any:
        if type(value) is ObjectId:
            moment = value.generation_time
        elif type(value) is DatetimeMS:
            try:
                moment = _EPOCH + timedelta(milliseconds=int(value))
            except OverflowError:
                return None
        else:
            return None
        if self.unit in _FORMATS:
            return moment.strftime(_FORMATS[self.unit])
        return moment.date() if self.unit == "day" else moment.year

    def _text(self, value: Any) -> str | None:
        if type(value) not in (str, int, Int64, bool, ObjectId):
            return None
        text = str(value)
        # Any other byte takes three bytes in a folder's name.
        size = len(self.name) + 1 + len(text.encode()) + 2 * len(_PLAIN.sub(b"", text.encode()))
        return text if text and size <= _FOLDER_BYTES_MAX else None


def parse_partition(text: str) -> PartitionColumn:
    """Return the partition column that the text describes. Raise SchemaError."""
    match = _TRANSFORM.fullmatch(text)
    if match is None:
        return PartitionColumn(_VALUE, parse_path(text))
    if match[1] not in _UNITS:
        raise SchemaError(f"{text!r}: a partition is by {', '.join(_UNITS)}, or by a value")
    return PartitionColumn(match[1], parse_path(match[2]))
