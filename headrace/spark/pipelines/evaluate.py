"""The evaluator on Spark's workers: it maps batches of rows to batches of rows, for `mapInArrow`.

FilterDocuments selects rows, if all stages filter. MakeDocuments makes documents, and RewriteEvents makes rows of
events. They read documents through a DocumentReader: from the columns of events, or from one column of documents.

A stage of one document fails on one document. With `failures` the row of the document is then returned unchanged, and
the column `_failed` has the reason; otherwise the error ends the query.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from headrace.errors import CommandError
from headrace.spark.pipelines import row_events
from headrace.spark.pipelines.program import Document, Flow, Program, fields_of, flow_of
from headrace.spark.rows.extjson import dumps

FAILED: Final = "_failed"
"""The column with the reason why the stages failed on a row."""

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class DocumentReader:
    """Reads the documents of a batch: from the column `document`, or, if it is None, from the columns of events."""

    document: str | None = None

    def read(self, batch: pa.RecordBatch, fields: Collection[str] | None = None) -> list[Document | None]:
        """Return the documents of a batch; None for a row without one. With `fields` other fields may be omitted."""
        if self.document is None:
            return list(row_events.events(batch, fields))
        column = batch.column(self.document)
        read = row_events.reader(column.type)
        return [None if cell is None else read(cell) for cell in column.to_pylist()]


@dataclass(frozen=True, slots=True)
class FilterDocuments:
    """Selects the rows whose documents pass the program, a list of filters; `columns` are the columns of the result."""

    source: DocumentReader
    program: Program
    columns: tuple[str, ...]
    failures: bool = False

    def __call__(self, batches: Batches) -> Batches:
        stages = self.program.stages()
        flow, fields = flow_of(stages), fields_of(stages)
        for batch in batches:
            failed = Failures(raising=not self.failures)
            mask = self._mask(batch, flow, fields, failed)
            remaining = batch if all(mask) else batch.filter(pa.array(mask, pa.bool_()))
            chosen = remaining.select(list(self.columns))
            yield failed.joined(chosen, batch.select(list(self.columns))) if self.failures else chosen

    def _mask(self, batch: pa.RecordBatch, flow: Flow, fields: Collection[str] | None, failed: Failures) -> list[bool]:
        return [
            document is not None and bool(failed.results(flow, document, index))
            for index, document in enumerate(self.source.read(batch, fields))
        ]


@dataclass(frozen=True, slots=True)
class MakeDocuments:
    """Runs the program and puts its documents into the column `into`, with the columns `carried` of their rows."""

    source: DocumentReader
    program: Program
    carried: tuple[str, ...]
    into: str
    failures: bool = False

    def __call__(self, batches: Batches) -> Batches:
        flow = flow_of(self.program.stages())
        for batch in batches:
            failed = Failures(raising=not self.failures, before=failures_before(batch))
            indexes, kind, cells = self._cells(flow, batch, failed)
            passed = len(indexes) - len(failed.reasons)
            reasons: list[str | None] = [*[None] * passed, *failed.reasons.values()]
            taken = batch.select(list(self.carried)).take(pa.array(indexes, pa.int64()))
            names, arrays = [*self.carried, self.into], [*taken.columns, pa.array(cells, kind)]
            if self.failures:
                names, arrays = [*names, FAILED], [*arrays, pa.array(reasons, pa.string())]
            yield pa.RecordBatch.from_arrays(arrays, names=names)

    def _cells(self, flow: Flow, batch: pa.RecordBatch, failed: Failures) -> tuple[list[int], pa.DataType, list[Any]]:
        """Return the result of the stages for a batch: the row indexes of documents, the column's type, and its values.

        The rows on which the stages failed come last, with the documents that the stages were given.
        """
        documents = self.source.read(batch)
        indexes, made = run_over(documents, flow, failed)
        if self.source.document is None:
            made += [documents[index] for index in failed.reasons]
            return [*indexes, *failed.reasons], pa.string(), list(map(dumps, made))
        column = batch.column(self.into)
        write = row_events.writer(column.type)
        cells = [*(write(document) for document in made), *(column[index].as_py() for index in failed.reasons)]
        return [*indexes, *failed.reasons], column.type, cells


@dataclass(frozen=True, slots=True)
class RewriteEvents:
    """Runs the program and makes rows of events from the results. Raises error 280 if a stage has changed `_id`."""

    source: DocumentReader
    program: Program
    columns: tuple[str, ...]
    failures: bool = False

    def __call__(self, batches: Batches) -> Batches:
        from headrace.spark.pipelines.row_events import row_arrays

        flow = flow_of(self.program.stages())
        for batch in batches:
            failed = Failures(raising=not self.failures)
            indexes, made = run_over(self.source.read(batch), flow, failed)
            tokens = batch.column("token").take(pa.array(indexes, pa.int64())).to_pylist()
            for token, document in zip(tokens, made, strict=True):
                check_id(token, document)
            given = batch.select(list(self.columns))
            rows = row_arrays(made, given, indexes)
            yield failed.joined(rows, given) if self.failures else rows


class Failures:
    """The rows of a batch on which the stages failed, by number, with the reasons; with `raising` the errors are
    raised.

    `before` has the rows on which earlier stages failed; these stages skip them.
    """

    def __init__(self, *, raising: bool, before: Mapping[int, str] | None = None) -> None:
        self._raising = raising
        self.reasons = dict(before or {})

    def results(self, flow: Flow, document: Document, index: int) -> tuple[Document, ...]:
        """Return the stages' results for row `index`; nothing if they fail on it. Raise CommandError."""
        try:
            return tuple(flow(document))
        except CommandError as error:
            if self._raising:
                raise
            self.reasons[index] = f"{error.message} ({error.code})"
            return ()

    def joined(self, rows: pa.RecordBatch, given: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows, then the failed rows as they were given, with the column `_failed`."""
        failed = given.take(pa.array(list(self.reasons), pa.int64()))
        arrays = [pa.concat_arrays(pair) for pair in zip(rows.columns, failed.columns, strict=True)]
        reasons: list[str | None] = [*[None] * rows.num_rows, *self.reasons.values()]
        return pa.RecordBatch.from_arrays(
            [*arrays, pa.array(reasons, pa.string())], names=[*given.schema.names, FAILED]
        )


def failures_before(batch: pa.RecordBatch) -> dict[int, str]:
    """Return the rows of a batch on which an earlier step failed, by number, with the reasons."""
    reasons = batch.column(FAILED).to_pylist() if FAILED in batch.schema.names else []
    return {number: reason for number, reason in enumerate(reasons) if reason is not None}


def check_id(token: str, document: Document) -> None:
    """Raise the error 280 of a change stream if the pipeline changed the event's `_id`."""
    identity = document.get("_id")
    if type(identity) is not dict or identity.get("_data") != token:
        raise CommandError(
            280,
            "Encountered an event whose _id field, which contains the resume token, was modified by the pipeline. Only "
            "transformations that retain the unmodified _id field are allowed; ask for documents instead of events.",
        )


def run_over(documents: list[Document | None], flow: Flow, failed: Failures) -> tuple[list[int], list[Any]]:
    """Return what the stages make of the documents of a batch; first the indexes of their rows.

    `failed` collects failing rows, if it does not raise.
    """
    indexes: list[int] = []
    made: list[Any] = []
    for index, document in enumerate(documents):
        if document is None or index in failed.reasons:
            continue
        for result in failed.results(flow, document, index):
            indexes.append(index)
            made.append(result)
    return indexes, made
