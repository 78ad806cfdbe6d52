"""Spark's streaming listener that writes a job's figures. Spark calls it on a thread of its own."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headrace.spark.jobs.figures import Figures


class FiguresListener(StreamingQueryListener):
    """Takes in what concerns the query `query`; any if that is empty. `offset` is the last committed one."""

    def __init__(self, figures: Figures, query: str = "") -> None:
        self._figures = figures
        self.query = query
        self.offset: dict[str, Any] | None = None

    @property
    def in_snapshot(self) -> bool:
        return bool(self.offset) and "after" in (self.offset or {})

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to note yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        if self.query and str(progress.id) != self.query:
            return
        end = progress.sources[0].endOffset if progress.sources else None
        self.offset = json.loads(end) if isinstance(end, str) else end
        taken_ms = progress.durationMs.get("triggerExecution", 0)
        self._figures.ended(progress.batchId, progress.numInputRows, taken_ms / 1000)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """No batch, no news."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Whoever waits for the query hears of it."""
