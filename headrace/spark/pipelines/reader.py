"""The source's option `pipeline`: the stages that the server runs, and those that the source's reader runs after them.

Rule: the server gets the leading stages that a change stream allows. The others must be stages of one document. No
stage may change an event's `_id`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from headrace.spark.pipelines.program import ONE_DOCUMENT, Document, Program, flow_of
from headrace.spark.pipelines.refusals import IN_STREAM, REFUSED, StageRefused
from headrace.values import bson

if TYPE_CHECKING:
    import pyarrow as pa


def split_stages(stages: Sequence[Document]) -> tuple[tuple[Document, ...], tuple[Document, ...]]:
    """Return the stages for the server's cursor and the stages for the reader. Raise StageRefused or CommandError."""
    end = next((index for index, stage in enumerate(stages) if next(iter(stage), "") not in IN_STREAM), len(stages))
    for stage in stages[end:]:
        name = next(iter(stage), "")
        if name not in ONE_DOCUMENT:
            why = REFUSED.get(name, "use headrace.spark.pipeline")
            raise StageRefused(f"{name} cannot be run by the source: {why}")
    Program(tuple(stages[end:])).stages()
    return tuple(stages[:end]), tuple(stages[end:])


def rewritten_batches(
    stages: Sequence[Document], batches: Iterable[pa.RecordBatch], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Run the stages over batches of all columns of events, as BSON; yield the results as batches of `columns`.

    Raise error 280 if a stage changed `_id`, and NotHeld for BSON that the stages would change.
    """
    from headrace.spark.pipelines import row_events
    from headrace.spark.pipelines.evaluate import check_id
    from headrace.spark.rows.not_held import refuse_not_held
    from headrace.values.arrow.batches import events_batch

    flow = flow_of(Program(tuple(stages)).stages())
    for batch in batches:
        refuse_not_held(batch)
        made = []
        for event in row_events.events(batch):
            for rewritten in flow(event):
                check_id(event["_id"]["_data"], rewritten)
                made.append(bson.encode(rewritten))
        if made:
            yield events_batch(made, columns)
