"""Upkeep of a table in one of Spark's catalogs: Delta's or Iceberg's own statement joins small files.

Such a commit has no position of this program; the position is found in the commits before it
(`tables/catalog/catalog_table.py`). Nothing else is done. Removing old versions is left to the table's owner, who knows
the readers: it may also remove the commit with the position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.clock import SystemClock
from headrace.spark.tables.catalog.catalog_table import CatalogTable
from headrace.spark.tables.position import TablePosition
from headrace.spark.upkeep.delta_upkeep import UpkeepOptions, UpkeepReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CatalogUpkeep:
    """The upkeep of the table with this name. `location` is also the name, which identifies the table."""

    def __init__(self, name: str, options: UpkeepOptions, get_session: Callable[[], SparkSession]) -> None:
        self.location, self.options = name, options
        self._table = CatalogTable[TablePosition](name, get_session)

    def run(self, *, stop: Callable[[], bool] = lambda: False, thorough: bool = False) -> UpkeepReport:
        """Join small files, in up to one commit; the table need not exist. Raise NotAMirror for a table of no sink."""
        clock = SystemClock()
        begun = clock.monotonic_ms()
        joined = 0
        if not stop() and self._table.exists():
            joined = self._table.join_files(self.options.target_bytes, least=2 if thorough else None)
        return UpkeepReport(self.location, compacted_files=joined, ms=round(clock.monotonic_ms() - begun))
