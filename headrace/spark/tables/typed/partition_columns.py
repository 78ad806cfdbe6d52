"""Partition columns of typed tables: by time, `day(created)` or `month(at)`, or by a value, `country`.

Each is a separate column, `day_created` or `partition_country`, computed from the document. It is null if the document
lacks such a value, or if the value is too long for the name of a folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from bson import Int64, ObjectId
from bson.datetime_ms import DatetimeMS

from headrace.spark.columns.column_types import SchemaError, column_name, parse_path

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
    """A partition column: the path of its value, and a unit of time, or `partition` for the value as text."""

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
