"""A sink in front of another one: rows that it refuses go to the dead letters, the others of the batch are applied.

Rule: what the sink has is right but for the keys that wait (`DeadLetters.waiting`), and each refused row is in the
table before the batch without it is committed. A batch that is repeated refuses the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace.spark.rows.events import Row
from headrace.spark.sinks.contract import BatchReport, MicroBatch, Sink, SinkPosition, take_rows
from headrace.spark.tables.dead_letters import REFUSED, RESOLVED, DeadLetter, DeadLetters
from headrace.spark.tables.refused_rows import Division, RefusedRows, RowRefused, identity_of


class DeadLetterSink:
    """See `contract.Sink`. `name` is the sink's in the table, `now_ms` the time."""

    def __init__(self, sink: Sink, letters: DeadLetters, name: str, now_ms: Callable[[], int]) -> None:
        self.sink = sink
        self._letters, self._name, self._now_ms = letters, name, now_ms

    def position(self) -> SinkPosition:
        return self.sink.position()

    def apply(self, batch: MicroBatch) -> BatchReport | None:
        if not batch.table.num_rows:
            return None
        ordered = replace(batch, table=batch.table.sort_by("token"))
        rows = ordered.rows()
        done = self.sink.position().token
        refused = RefusedRows(set(self._letters.waiting(self._name, rows[0].token, done)), done)
        count = 0
        while True:
            division = refused.divided(rows)
            count += self._write(ordered, rows, division, refused)
            try:
                report = self.sink.apply(replace(ordered, table=take_rows(ordered.table, division.taken)))
            except RowRefused as error:
                if error.token in refused.reasons or error.token not in {row.token for row in rows}:
                    raise
                refused.reasons[error.token] = str(error)
                continue
            if report is None and count:
                report = BatchReport(batch.number, 0, 0, done, batch.first_event_ms(), self._now_ms())
            return report and replace(report, row_count=len(rows), dead_letter_count=count)

    def _write(self, batch: MicroBatch, rows: list[Row], division: Division, refused: RefusedRows) -> int:
        """Writes the refused rows, and which keys wait no more; how many rows are new there."""
        if not division.refused and refused.waiting == division.waiting:
            return 0
        values = take_rows(batch.table, division.refused).to_pylist()
        letters = [
            DeadLetter(
                self._name, rows[number].token, identity_of(rows[number]), REFUSED, rows[number].operationType,
                refused.reasons.get(rows[number].token, "the document waits for a row that brings it as it is"),
                _text(value),
            )
            for number, value in zip(division.refused, values, strict=True)
        ]  # fmt: skip
        refused_keys = {letter.key for letter in letters if letter.key is not None}
        ended = (refused.waiting | refused_keys) - division.waiting
        letters += [DeadLetter(self._name, rows[-1].token, key, RESOLVED, None, "", "") for key in sorted(ended)]
        return self._letters.add(letters, self._now_ms())


def _text(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, default=lambda value: value.isoformat())
