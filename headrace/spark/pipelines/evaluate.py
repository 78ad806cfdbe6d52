"""The evaluator on Spark's workers: batches of rows in, batches of rows out, for `mapInArrow`.

FilterDocuments selects rows, if all stages filter; MakeDocuments and RewriteEvents make documents and rows of events.
They read documents through a DocumentReader: from the columns of events, or from one column of documents.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.errors import CommandError
from headrace.query.pipeline import Stage
from headrace.spark.pipelines import row_events
from headrace.spark.pipelines.program import Document, Program, fields_of, flow_of

if TYPE_CHECKING:
    from headrace.spark.pipelines.program import Flow

CERTAIN: Final = "_sure"
"""The internal column that says that columns alone have decided that a row matches the leading filters."""

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class DocumentReader:
    """Reads the documents of a batch: from the column `document`, or from the columns of events if that is None."""

    document: str | None = None

    def read(
        self, batch: pa.RecordBatch, fields: Collection[str] | None = None, texts: dict[int, str] | None = None
    ) -> list[Document | None]:
        """The documents of a batch; None for a row without one. With `fields` other fields may be left out.

        For `texts` see `row_events.events`.
        """
        if self.document is None:
            return list(row_events.events(batch, fields, texts))
        column = batch.column(self.document)
        read = row_events.reader(column.type)
        return [None if cell is None else read(cell) for cell in column.to_pylist()]


@dataclass(frozen=True, slots=True)
class FilterDocuments:
    """Selects the rows whose documents pass the program, a list of filters; `columns` are those of the result."""

    source: DocumentReader
    program: Program
    columns: tuple[str, ...]

    def __call__(self, batches: Batches) -> Batches:
        stages = self.program.stages()
        flow, fields = flow_of(stages), fields_of(stages)
        for batch in batches:
            mask = self._mask(batch, flow, fields)
            remaining = batch if all(mask) else batch.filter(pa.array(mask, pa.bool_()))
            yield remaining.select(list(self.columns))

    def _mask(self, batch: pa.RecordBatch, flow: Flow, fields: Collection[str] | None) -> list[bool]:
        mask = _certain(batch)
        asked = [index for index, certain in enumerate(mask) if not certain]
        if not asked:
            return mask
        undecided = batch if len(asked) == batch.num_rows else batch.take(pa.array(asked, pa.int64()))
        for index, document in zip(asked, self.source.read(undecided, fields), strict=True):
            mask[index] = document is not None and bool(tuple(flow(document)))
        return mask


@dataclass(frozen=True, slots=True)
class MakeDocuments:
    """Runs the program and puts its documents into the column `into`, with the columns `carried` of their rows.

    The program's first `filters` stages are skipped for rows that are certain to match.
    """

    source: DocumentReader
    program: Program
    carried: tuple[str, ...]
    into: str
    filters: int = 0

    def __call__(self, batches: Batches) -> Batches:
        stages = self.program.stages()
        for batch in batches:
            indexes, kind, cells = self._cells(stages, batch)
            column = pa.array(cells, kind)
            taken = batch.select(list(self.carried)).take(pa.array(indexes, pa.int64()))
            names = [*self.carried, self.into]
            yield pa.RecordBatch.from_arrays([*taken.columns, column], names=names)

    def _cells(self, stages: tuple[Stage, ...], batch: pa.RecordBatch) -> tuple[list[int], pa.DataType, list[Any]]:
        """The result of the stages for a batch: the documents' row indexes, the type of the column, and its values."""
        if self.source.document is None:
            texts: dict[int, str] = {}
            documents = self.source.read(batch, texts=texts)  # referenced, as `texts` has them by their ids
            indexes, made = run_over(documents, stages, batch, self.filters)
            return indexes, pa.string(), [row_events.text_of(document, texts) for document in made]
        indexes, made = run(self.source, stages, batch, self.filters)
        kind = batch.column(self.into).type
        write = row_events.writer(kind)
        return indexes, kind, [write(document) for document in made]


@dataclass(frozen=True, slots=True)
class RewriteEvents:
    """Runs the program and makes rows of events of the results. Raises error 280 if a stage has changed `_id`."""

    source: DocumentReader
    program: Program
    columns: tuple[str, ...]
    filters: int = 0

    def __call__(self, batches: Batches) -> Batches:
        from headrace.spark.pipelines.event_rows import row_arrays

        stages = self.program.stages()
        for batch in batches:
            indexes, made = run(self.source, stages, batch, self.filters)
            tokens = batch.column("token").take(pa.array(indexes, pa.int64())).to_pylist()
            for token, document in zip(tokens, made, strict=True):
                check_id(token, document)
            yield row_arrays(made, batch.select(list(self.columns)), indexes)


def check_id(token: str, document: Document) -> None:
    """Raises the error 280 of a change stream whose pipeline changed an event's `_id`."""
    identity = document.get("_id")
    if type(identity) is not dict or identity.get("_data") != token:
        raise CommandError(
            280,
            "Encountered an event whose _id field, which contains the resume token, was modified by the pipeline. Only "
            "transformations that retain the unmodified _id field are allowed; ask for documents instead of events.",
        )


def run(
    source: DocumentReader, stages: tuple[Stage, ...], batch: pa.RecordBatch, filters: int
) -> tuple[list[int], list[Any]]:
    """The documents that the stages make of a batch, with the indexes of their rows first."""
    return run_over(source.read(batch), stages, batch, filters)


def run_over(
    documents: list[Document | None], stages: tuple[Stage, ...], batch: pa.RecordBatch, filters: int
) -> tuple[list[int], list[Any]]:
    """As `run`, for documents that were read already."""
    full_flow = flow_of(stages)
    rest = flow_of(stages[filters:]) if filters else full_flow
    indexes: list[int] = []
    made: list[Any] = []
    for index, (document, certain) in enumerate(zip(documents, _certain(batch), strict=True)):
        if document is None:
            continue
        for result in (rest if certain else full_flow)(document):
            indexes.append(index)
            made.append(result)
    return indexes, made


def _certain(batch: pa.RecordBatch) -> list[bool]:
    if CERTAIN in batch.schema.names:
        return [bool(certain) for certain in batch.column(CERTAIN).to_pylist()]
    return [False] * batch.num_rows
