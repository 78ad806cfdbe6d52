"""`$changeStream` and `$changeStreamSplitLargeEvent`, as far as the parser of stages must know them.

`changes/` implements them: the parser of streams removes `$changeStream` before the stages are parsed here, and splits
events after the last stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.errors import CommandError
from headrace.query.stages.stage import Document, DocumentStage, PipelineContext, Stage
from headrace.values.bson import type_name


@dataclass(frozen=True, slots=True)
class ChangeStream(Stage):
    """A `$changeStream` in a plain pipeline. It must be first; the command recognises it."""

    name: str
    spec: Any

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """Never run: a stream has no documents."""
        raise CommandError(40573, "The $changeStream stage must be run by a change stream cursor")


def parse_change_stream(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$changeStream: {...}}`. The parser of streams checks its options."""
    if type(spec) is not dict:
        raise CommandError(50808, f"$changeStream stage expects a document as argument, found {type_name(spec)}")
    return (ChangeStream(name, spec),)


def parse_split(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$changeStreamSplitLargeEvent: {}}`."""
    if spec != {}:
        raise CommandError(7182800, f"{name} spec should be an empty object")
    return (DocumentStage(name, spec, lambda event: event),)
