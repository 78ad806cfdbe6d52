"""Wrappers of a sink: rows that the sink refuses go to the dead letters, and the rest of the batch is applied.

Rules: the sink is right except for the keys that wait (`DeadLetters.waiting`). Each refused row is in the table of dead
letters before the batch without it is committed. A repeated batch refuses the same rows.

Rows on which the job's stages failed also go there. They come in order and unchanged, with the reason in a separate
column (`pipelines/evaluate.py`). A repeated batch has the same failed rows.

Some targets refuse documents only while they write them, and report so in their `CommitOutcome`. The row that made the
document is then added to the table, and the document waits. The outcome also says which documents no longer wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from headrace.spark.pipelines.evaluate import FAILED
from headrace.spark.rows.events import Row
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.key_identity import key_identity
from headrace.spark.rows.not_held import MARKED, marked_rows
from headrace.spark.sinks.contract import BatchReport, MicroBatch, Sink, take_rows
from headrace.spark.tables.dead_letters import REFUSED, RESOLVED, DeadLetter, DeadLetters, row_text
from headrace.spark.tables.mongodb.mongodb_mirror import MongoMirror
from headrace.spark.tables.progress import TablePosition
from headrace.spark.tables.refused_rows import (
    CommitOutcome,
    Division,
    RefusedRows,
    RefusedWrite,
    RowRefused,
    identity_of,
)

if TYPE_CHECKING:
    import pyarrow as pa


class DeadLetterSink:
    """See `contract.Sink`. `name` is the sink's name in the table of dead letters, `now_ms` returns the time."""

    def __init__(self, sink: Sink, letters: DeadLetters, name: str, now_ms: Callable[[], int]) -> None:
        self.sink = sink
        self._letters, self._name, self._now_ms = letters, name, now_ms
        self._table: pa.Table | None = None
        self._rows: list[Row] = []
        """The rows of the batch that is being applied, in order; `_table` has the same rows."""
        self._late_count = 0
        table = getattr(sink, "table", None)
        self._late = isinstance(table, MongoMirror)
        if isinstance(table, MongoMirror):
            table.on_outcome = self._settled

    def position(self) -> TablePosition:
        return self.sink.position()

    def apply(self, batch: MicroBatch) -> BatchReport | None:
        if not batch.table.num_rows:
            return None
        ordered = replace(batch, table=batch.table.sort_by("token"))
        self._table, self._rows, self._late_count = ordered.table, ordered.rows(), 0
        try:
            return self._apply(ordered, self._rows)
        finally:
            self._table, self._rows = None, []

    def _apply(self, ordered: MicroBatch, rows: list[Row]) -> BatchReport | None:
        done = self.sink.position().token
        waiting = set(self._letters.waiting(self._name, rows[0].token, done))
        refused = RefusedRows(waiting, done, marked=marked_rows(ordered.table, MARKED))
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
            if self._late_count:
                self._forget_deleted([rows[number] for number in division.taken])
            count += self._late_count
            if report is None and count:
                report = BatchReport(ordered.number, 0, 0, done, ordered.first_event_ms(), self._now_ms())
            return report and replace(report, row_count=len(rows), dead_letter_count=count)

    def _write(self, batch: MicroBatch, rows: list[Row], division: Division, refused: RefusedRows) -> int:
        """Write the refused rows and the keys that no longer wait. Return how many rows are new in the table."""
        if not division.refused and refused.waiting == division.waiting:
            return 0
        values = take_rows(batch.table, division.refused).to_pylist()
        letters = [
            DeadLetter(
                self._name, rows[number].token, identity_of(rows[number]), REFUSED, rows[number].operationType,
                refused.reason(number, rows[number]), row_text(value),
            )
            for number, value in zip(division.refused, values, strict=True)
        ]  # fmt: skip
        refused_keys = {letter.key for letter in letters if letter.key is not None}
        ended = (refused.waiting | refused_keys) - division.waiting
        if self._late:
            ended -= _brought([rows[number] for number in division.taken])
        letters += [DeadLetter(self._name, rows[-1].token, key, RESOLVED, None, "", "") for key in sorted(ended)]
        return self._letters.add(letters, self._now_ms())

    def _settled(self, outcome: CommitOutcome) -> None:
        """Record which documents the target refused, and which waiting documents it now accepted."""
        rows = {(row.token, identity_of(row)): number for number, row in enumerate(self._rows)}
        letters = [self._letter_of(write, rows) for write in outcome.refused]
        waiting = self._letters.waiting(self._name).keys()
        for key, token in outcome.accepted.items():
            if waiting and (identity := key_identity(key)) in waiting:
                letters.append(DeadLetter(self._name, token, identity, RESOLVED, None, "", ""))
        self._late_count += self._letters.add(letters, self._now_ms())

    def _forget_deleted(self, rows: Sequence[Row]) -> None:
        """Forget a refused document that a later row of the batch removes."""
        last = {identity_of(row): row for row in rows}
        letters = [
            DeadLetter(self._name, last[key].token, key, RESOLVED, None, "", "")
            for key in self._letters.waiting(self._name)
            if key in last and last[key].operationType == "delete"
        ]
        self._letters.add(letters, self._now_ms())

    def _letter_of(self, write: RefusedWrite, rows: Mapping[tuple[str, str | None], int]) -> DeadLetter:
        """Return the dead letter of a refused write, with its row if this batch has it. An earlier process may have had
        it."""
        identity, kind = key_identity(write.key), None
        value: dict[str, Any] = {"token": write.token, "documentKey": dumps({"_id": loads(write.key)})}
        number = rows.get((write.token, identity))
        if number is not None and self._table is not None:
            (value,), kind = take_rows(self._table, [number]).to_pylist(), self._rows[number].operationType
        return DeadLetter(self._name, write.token, identity, REFUSED, kind, write.reason, row_text(value))


def _brought(rows: Sequence[Row]) -> set[str | None]:
    """Return the keys whose last row brings a document, which the target may still refuse."""
    last = {identity_of(row): row for row in rows}
    return {key for key, row in last.items() if key is not None and row.operationType != "delete"}


class StageFailuresSink:
    """Keeps the rows on which the job's stages failed from a sink. See `DeadLetterSink`."""

    def __init__(self, sink: Sink, letters: DeadLetters, name: str, now_ms: Callable[[], int]) -> None:
        self.sink = sink
        self._letters, self._name, self._now_ms = letters, name, now_ms

    def position(self) -> TablePosition:
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
