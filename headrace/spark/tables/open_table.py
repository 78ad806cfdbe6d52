"""A Delta table that stays open: opening one reads every commit since its last checkpoint, going on only new ones."""

from __future__ import annotations

from typing import Any

from deltalake import DeltaTable

from headrace.spark.tables.table_location import TableLocation


class OpenDeltaTable:
    """The table of a place, for a sink's life. Another process may commit to it; it is not to be removed meanwhile."""

    def __init__(self, location: TableLocation) -> None:
        self.location = location
        self._table: DeltaTable | None = None

    def now(self) -> DeltaTable | None:
        """As it is; None as long as there is none."""
        if self._table is None:
            self._table = self.location.table()
        else:
            self._table.update_incremental()
        return self._table

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenDeltaTable, (self.location,)
