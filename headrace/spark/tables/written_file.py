"""A Parquet file that this program writes into a table's folder, with the statistics that Delta's log needs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from headrace import limits
from headrace.spark.tables.table_location import TableLocation

_DOCUMENTS: Final = frozenset({"document", "fullDocument"})


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A durable file in the table's folder that is not committed yet. `stats` are its statistics for Delta, as JSON.

    `values` are the values of the columns that partition the table. In a file of rows to be folded, which is never
    committed, each row group has the rows of one slot; `slots` lists the slots.
    """

    name: str
    size: int
    stats: str
    slots: tuple[int, ...] = ()
    values: Mapping[str, str | None] = field(default_factory=dict)

    def added(self, now_ms: int) -> AddAction:
        """Return the Delta action that adds the file."""
        return AddAction(self.name, self.size, self.values, now_ms, True, self.stats)


class OpenFile:
    """A new file, created with its first rows. `options` are options of Arrow's writer.

    Its statistics have the smallest and the greatest value of the columns `bounded`; by default, of all columns with an
    order.
    """

    def __init__(
        self, location: TableLocation, name: str, bounded: Collection[str] | None = None, **options: Any
    ) -> None:
        self._location, self._name, self._bounded = location, name, bounded
        self._options = {"compression": "zstd"} | options
        self._writer: pq.ParquetWriter | None = None
        self._count = 0
        self._bounds: dict[str, tuple[Any, Any]] = {}
        self._unbounded = set(_DOCUMENTS)

    def write(self, rows: pa.Table) -> None:
        """Add a row group."""
        if self._writer is None:
            self._location.create()
            self._writer = pq.ParquetWriter(self._name, rows.schema, filesystem=self._location.files, **self._options)
        self._writer.write_table(rows)
        self._count += rows.num_rows
        for each in rows.schema:
            if (self._bounded is None and _has_order(each.type)) or each.name in (self._bounded or ()):
                self._widen(each.name, pc.min_max(rows.column(each.name)).as_py())

    def close(self, **more: Any) -> WrittenFile | None:
        """Make the file durable and return it; None if there are no rows. `more` sets other fields of the result."""
        if self._writer is None:
            return None
        self._writer.close()
        self._location.sync_file(self._name)
        size = self._location.size(self._name)
        assert size is not None
        return WrittenFile(self._name, size, _statistics(self._count, self._bounds), **more)

    def abandon(self) -> None:
        """Remove the unfinished file."""
        if self._writer is not None:
            self._writer.close()
            self._location.remove_file(self._name)

    def _widen(self, name: str, both: dict[str, Any]) -> None:
        pair = both["min"], both["max"]
        if None in pair or name in self._unbounded:
            return
        if any(len(str(each)) > limits.STATISTIC_CHARACTER_COUNT_MAX for each in pair):
            self._unbounded.add(name)
            self._bounds.pop(name, None)
            return
        least, most = self._bounds.get(name, pair)
        self._bounds[name] = min(least, pair[0]), max(most, pair[1])


def _has_order(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_timestamp(kind))


def _statistics(row_count: int, bounds: Mapping[str, tuple[Any, Any]]) -> str:
    """Return Delta's statistics of a file, as JSON, from the smallest and greatest values of columns."""
    least = {name: _statistic(pair[0], up=False) for name, pair in bounds.items()}
    most = {name: _statistic(pair[1], up=True) for name, pair in bounds.items()}
    return json.dumps({"numRecords": row_count, "minValues": least, "maxValues": most})


def _statistic(value: Any, *, up: bool) -> str | int:
    """Return a bound for Delta's statistics. Times are rounded outwards to milliseconds."""
    if not isinstance(value, datetime):
        return value if isinstance(value, int) else str(value)
    moment = value.astimezone(UTC)
    rest = timedelta(microseconds=moment.microsecond % 1000)
    moment += timedelta(milliseconds=1) - rest if up and rest else -rest
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"
