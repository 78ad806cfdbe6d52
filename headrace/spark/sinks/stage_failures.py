"""A wrapper of a sink: rows on which the job's stages failed go to the dead letters, not to the sink.

The rows come in order and unchanged, with the reason in a separate column (`pipelines/evaluate.py`). They are in the
table of dead letters before the batch without them is committed. A repeated batch has the same failed rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow.compute as pc

from headrace.spark.pipelines.evaluate import FAILED
from headrace.spark.sinks.contract import BatchReport, MicroBatch, Sink, SinkPosition
from headrace.spark.tables.dead_letters import REFUSED, DeadLetter, DeadLetters, row_text


class StageFailuresSink:
    """See `contract.Sink`. `name` is the sink's name in the table of dead letters, `now_ms` returns the time."""

    def __init__(self, sink: Sink, letters: DeadLetters, name: str, now_ms: Callable[[], int]) -> None:
        self.sink = sink
        self._letters, self._name, self._now_ms = letters, name, now_ms

    def position(self) -> SinkPosition:
        return self.sink.position()

    def apply(self, batch: MicroBatch) -> BatchReport | None:
        if FAILED not in batch.table.column_names:
            return self.sink.apply(batch)
        reasons = batch.table.column(FAILED)
        failed = batch.table.filter(pc.is_valid(reasons)).to_pylist()
        letters = [
            DeadLetter(self._name, row["token"], None, REFUSED, row.get("operationType"), row[FAILED], row_text(row))
            for row in failed
        ]
        count = self._letters.add(letters, self._now_ms())
        passed = batch.table.filter(pc.is_null(reasons)).drop_columns([FAILED])
        report = self.sink.apply(replace(batch, table=passed))
        if report is None and count:
            token = self.sink.position().token
            report = BatchReport(batch.number, 0, 0, token, batch.first_event_ms(), self._now_ms())
        if report is None:
            return None
        rows, letters_count = report.row_count + len(failed), report.dead_letter_count + count
        return replace(report, row_count=rows, dead_letter_count=letters_count)
