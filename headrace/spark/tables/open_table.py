"""A Delta table that stays open. Opening reads every commit since its last checkpoint, refreshing only new ones."""

from __future__ import annotations

from typing import Any

from deltalake import DeltaTable

from headrace.spark.tables.table_location import TableLocation


class OpenDeltaTable:
    """The table at a location, for a sink's lifetime. Others may commit to it meanwhile, but not remove it."""

    def __init__(self, location: TableLocation) -> None:
        self.location = location
        self._table: DeltaTable | None = None

    def now(self) -> DeltaTable | None:
        """Return the table in its present state; None if it does not exist."""
        if self._table is None:
            self._table = self.location.table()
        else:
            self._table.update_incremental()
        return self._table

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenDeltaTable, (self.location,)
