"""Admission control: Spark 4.2 asks for the end of a batch with its start and a limit, Spark 4.1 with neither.

This is the only file that depends on PySpark's version. Spark 4.1 asks for "the latest offset" and means the end of the
next batch. So the reader remembers its position: its last answer. Before the first answer, the position is the end of
the last planned batch, which Spark plans again (as an empty range) before anything else when a query is restarted;
otherwise it is the beginning.

The options' limits hold in both versions, because the source enforces them. With 4.1 the trigger `availableNow` is a
single batch, within the limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.stream.offsets import Offset
from headrace.spark.stream.planner import StreamPlanner

HAS_ADMISSION_CONTROL: Final = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether this PySpark has admission control; 4.1 does not."""

if TYPE_CHECKING or HAS_ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:
    SupportsTriggerAvailableNow = object

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def took_all(query: StreamingQuery) -> bool:
    """Whether an ended query with the trigger `availableNow` has read everything; otherwise it must be run again."""
    # In 4.1 a run is at most one batch. Progress without addBatch wrote nothing.
    return HAS_ADMISSION_CONTROL or not any("addBatch" in progress["durationMs"] for progress in query.recentProgress)


class _StreamOwner:
    """The part of a reader that both kinds of admission need."""

    options: SourceOptions

    @cached_property
    def stream(self) -> StreamPlanner:
        """The planner of the stream, made at first use."""
        return StreamPlanner(self.options)


class AdmissionControl(_StreamOwner, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The methods that Spark 4.2 and newer call."""

    def initialOffset(self) -> Offset:
        return self.stream.initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark takes one limit; the source enforces both.
        if self.options.rows_max:
            return ReadMaxRows(self.options.rows_max)
        return ReadMaxBytes(self.options.bytes_max) if self.options.bytes_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.stream.stop_at_now()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        return self.stream.latest_offset(start)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return self.stream.partitions(start, end)


class LegacyAdmission(_StreamOwner):
    """The methods that Spark 4.1 calls."""

    _first: Offset | None = None
    _current: Offset | None = None

    def initialOffset(self) -> Offset:
        # Spark calls this after the first `latestOffset`, which begins at the same offset.
        if self._first is None:
            self._first = self.stream.initial_offset()
        return self._first

    def latestOffset(self) -> Offset:
        self._current = self.stream.latest_offset(self.initialOffset() if self._current is None else self._current)
        return self._current

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if self._current is None:
            self._current = end
        return [] if start == end else self.stream.partitions(start, end)


if TYPE_CHECKING:
    Admission = AdmissionControl
else:
    Admission = (
        AdmissionControl if HAS_ADMISSION_CONTROL else type("Admission", (LegacyAdmission, DataSourceStreamReader), {})
    )
