"""The sink `parquet`: an append-only log of the events in Parquet files, see `tables/parquet_log.py`.

A drop, a rename and an invalidate are recorded as rows, as in the sink `changes`.
"""

from __future__ import annotations

from pathlib import Path

from headrace.spark.sinks.log_sink import LogSink, checked_writers
from headrace.spark.tables.parquet_log import ParquetLog


def parquet_sink(path: str | Path, *, policy: str = "follow", writers: str = "tasks") -> LogSink:
    """Return the sink whose files are in `path`; its first batch creates them. For `writers` see
    `log_sink.checked_writers`."""
    return LogSink(ParquetLog(path), policy, shared=checked_writers(writers) == "tasks")
