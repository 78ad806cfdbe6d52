"""Stages that MongoDB has and Headrace lacks, with their errors.

Rule: a change stream refuses such a stage with error 20, as MongoDB does. Elsewhere its own error is raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import CommandError
from headrace.query.stages.stage import Document, PipelineContext, Stage

_NO_SEARCH = "{} needs Atlas Search, which Headrace does not have; match with $regex, or export to a search engine"
_NOT_HERE = "{} is not available on this server"
UNSUPPORTED: Final[dict[str, tuple[int, str]]] = {
    "$listSearchIndexes": (31082, _NO_SEARCH),
    "$search": (31082, _NO_SEARCH),
    "$searchMeta": (31082, _NO_SEARCH),
    "$shardedDataDistribution": (6789101, _NOT_HERE),
    "$vectorSearch": (31082, _NO_SEARCH),
}


@dataclass(frozen=True, slots=True)
class Refused(Stage):
    """Stands in a change stream's pipeline until the check of the stages' placement refuses it."""

    name: str
    spec: Any

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """Never run."""
        raise AssertionError(f"{self.name} should have been refused")


def parse_unsupported(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """Raise the stage's error. In a change stream, return a stage for the placement check to refuse."""
    if context.in_change_stream:
        return (Refused(name, spec),)
    code, message = UNSUPPORTED[name]
    raise CommandError(code, message.format(name))
