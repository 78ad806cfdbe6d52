"""How Spark asks a stream for the end of a batch: from 4.2 on with its start and a limit, in 4.1 with neither.

The one file that knows PySpark's version. Spark 4.1 asks for "the latest offset" and means the end of the next batch.
So the reader remembers where it stands: at what it answered last; before that, at the end of the last planned batch,
which Spark tells a query that goes on (as an empty range to plan) before it asks anything; else at the beginning.

The options' bounds hold either way, since they are the source's own. What 4.1 has not is a run over what is available
in several batches: there the trigger `availableNow` is one batch, and within the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headrace.spark.mongodb.source_options import SourceOptions

HAS_ADMISSION_CONTROL: Final = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether this PySpark has admission control: 4.1 has not."""

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

Offset = dict[str, Any]


def took_all(query: StreamingQuery) -> bool:
    """Whether a query with the trigger `availableNow`, now ended, took all there was; if not, it is to be run again."""
    # In 4.1 a run is one batch, or none; what else it reports as progress wrote nothing.
    return HAS_ADMISSION_CONTROL or not any("addBatch" in progress["durationMs"] for progress in query.recentProgress)


class DriverStream(Protocol):
    """The driver's side of a stream, which knows no Spark."""

    def initial_offset(self) -> Offset: ...
    def latest_offset(self, start: Offset) -> Offset: ...
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]: ...
    def stop_at_now(self) -> None: ...


class _StreamOwner:
    """What stands behind either way of asking."""

    options: SourceOptions

    @property
    def stream(self) -> DriverStream:
        raise NotImplementedError


class AdmissionControl(_StreamOwner, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """As Spark 4.2 and newer ask."""

    def initialOffset(self) -> Offset:
        return self.stream.initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark keeps one limit; the source keeps both.
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
    """As Spark 4.1 asks."""

    _first: Offset | None = None
    _current: Offset | None = None

    def initialOffset(self) -> Offset:
        # Spark asks for it behind the first `latestOffset`, which begins there too.
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
