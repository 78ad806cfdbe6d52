"""The Python Data Source `headrace`: change events for `spark.read` and `spark.readStream`.

The document after an update is not looked up: `fullDocument: updateLookup` would give another one at each read. Request
post-images (`fullDocument: whenAvailable`), or apply `updateDescription`, as mirrors do.

Spark requests the schema in a separate process, so the readers (`readers.py`) are imported only where they are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from headrace.spark.source.options import parse_options
from headrace.spark.source.schema import schema_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class HeadraceSource(DataSource):
    """The source `format("headrace")`; for its options see `headrace.spark.source.options.parse_options`."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> str:
        return schema_of(parse_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from headrace.spark.source.readers import BatchReader

        return BatchReader(parse_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from headrace.spark.source.prefetch import PrefetchingReader
        from headrace.spark.source.readers import StreamReader

        kind = PrefetchingReader if PrefetchingReader.is_possible else StreamReader
        return kind(parse_options(self.options), schema)
