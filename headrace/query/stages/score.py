"""`$score`: computes a score for each document, as metadata.

    {$score: {score: {$multiply: ["$stars", 2]}, normalization: "sigmoid", weight: 0.5}}

In later stages, `{$meta: "score"}` and `"scoreDetails"` are the values of the document that left this stage last.
Source: MongoDB's documentation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from bson import Decimal128

from headrace.errors import CommandError
from headrace.query.document_metadata import SCORE, SCORE_DETAILS, DocumentMetadata
from headrace.query.expressions.arithmetic import sigmoid
from headrace.query.expressions.numbers import NUMBERS
from headrace.query.options import ANY, NUMBER, check_options, one_of
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.query.tape import Tape
from headrace.values.bson import MISSING, type_name

NORMALIZATIONS: Final = ("none", "sigmoid", "minMaxScaler")
_DESCRIPTION: Final = (
    "the score calculated from multiplying a weight in the range [0,1] with either a normalized or nonnormalized value:"
)


@dataclass(frozen=True, slots=True)
class Score(Stage):
    """Notes the score of each document. `before`: the metadata that documents have before the stage."""

    name: str
    spec: Any
    value: Callable[[Document], Any]
    normalization: str
    weight: float
    is_detailed: bool
    context: PipelineContext
    live: DocumentMetadata
    before: DocumentMetadata | None

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """All documents, unchanged. Reads all input first for `minMaxScaler`. Raises 14 for a score that is no
        number."""
        if self.normalization != "minMaxScaler":
            for document in documents:
                raw = score_of(self.value(document))
                self._note(raw, sigmoid(raw) if self.normalization == "sigmoid" else raw)
                yield document
            return
        for item, scaled in with_scaled(self._scored(documents), self.context, self.name):
            document = item["d"] if self.before is None else self.before.note(item["d"])
            self._note(item["score"], scaled)
            yield document

    def _scored(self, documents: Iterator[Document]) -> Iterator[Document]:
        for document in documents:
            score = score_of(self.value(document))
            yield {"score": score, "d": document if self.before is None else self.before.carry(document)}

    def _note(self, raw: float, normalized: float) -> None:
        """Set the metadata of the document that leaves the stage."""
        score = normalized * self.weight
        values = {} if self.before is None else self.before.values
        self.live.values = {**values, SCORE: score}
        if self.is_detailed:
            self.live.values[SCORE_DETAILS] = {
                "value": score, "description": _DESCRIPTION, "rawScore": raw, "normalization": self.normalization,
                "weight": self.weight, "expression": as_text({"string": self.spec["score"]}), "details": [],
            }  # fmt: skip


def score_of(value: Any) -> float:
    """Return a score as a double. Raises 14 if it is no number."""
    if type(value) not in NUMBERS:
        kind = "missing" if value is MISSING else type_name(value)
        raise CommandError(14, f"a score must be a number, but is of type {kind}")
    return float(value.to_decimal()) if type(value) is Decimal128 else float(value)


def with_scaled(
    items: Iterable[Document], context: PipelineContext, name: str
) -> Iterator[tuple[Document, float]]:  # fmt: skip
    """Yield the items, each with its `score` scaled to the range from 0 to 1, for the stage `name`. Reads all input
    first. Raises 292."""
    least, greatest = math.inf, -math.inf

    def seen() -> Iterator[Document]:
        nonlocal least, greatest
        for item in items:
            least, greatest = min(least, item["score"]), max(greatest, item["score"])
            yield item

    with context.memory.stage(name) as memory:
        for item in Tape(seen(), memory).documents():
            yield item, (item["score"] - least) / (greatest - least) if greatest > least else 0.0


def parse_score(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$score: {score, normalization, weight, scoreDetails}}`."""
    types = {"normalization": "string", "score": ANY, "scoreDetails": "bool", "weight": NUMBER}
    check_options("$score", spec, types, ["score"])
    weight = score_of(spec.get("weight", 1))
    if not 0 <= weight <= 1:
        sign, end = ("<=", 1) if weight > 1 else (">=", 0)
        raise CommandError(2, f"BSON field 'weight' value must be {sign} {end}, actual value '{weight:g}'")
    normalization = one_of("$score.normalization", spec.get("normalization", "none"), NORMALIZATIONS)
    detailed = spec.get("scoreDetails", False)
    before = context.carried
    if before is not None:
        before.is_read = True
    names = dict.fromkeys([*(before.values if before is not None else ()), SCORE, *[SCORE_DETAILS] * detailed])
    live = DocumentMetadata(*names)
    value = context.expression(spec["score"])
    return (Score(name, spec, value, normalization, weight, detailed, context, live, before),)


def as_text(value: Any) -> str:
    """Return a value as MongoDB prints it, with single quotes."""
    if type(value) is dict:
        return "{ " + ", ".join(f"{name}: {as_text(item)}" for name, item in value.items()) + " }" if value else "{}"
    if type(value) is list:
        return "[ " + ", ".join(map(as_text, value)) + " ]" if value else "[]"
    if type(value) is str:
        return f"'{value}'"
    if type(value) is bool or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)
