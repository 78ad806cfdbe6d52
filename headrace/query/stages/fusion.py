"""`$score`, `$rankFusion` and `$scoreFusion`: scores of documents, and the results of several pipelines as one ranking.

    {$score: {score: {$multiply: ["$stars", 2]}, normalization: "sigmoid", weight: 0.5}}
    {$rankFusion: {input: {pipelines: {a: [{$sort: {x: 1}}], b: [{$sort: {y: -1}}]}}, combination: {weights: {a: 2}}}}

A fusion has each document once. Its score is the sum of `weight / (60 + rank)` over the pipelines that found it, or the
average of its scores there (0 if a pipeline did not find it), or the value of an expression. A fusion must be first and
makes its own documents: the command runs the pipelines (`execution/pipelines.py`). In later stages, `{$meta: "score"}`
and `"scoreDetails"` are the values of the document that left such a stage last.
Source: MongoDB's documentation, and the messages of its server.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bson import Decimal128, Int64

from headrace.errors import CommandError
from headrace.query.document_metadata import SCORE, SCORE_DETAILS, DocumentMetadata
from headrace.query.expressions import CompiledExpression, Env, parse_expression
from headrace.query.expressions.arithmetic import sigmoid
from headrace.query.expressions.expression import check_field_name, check_variable_name
from headrace.query.expressions.numbers import NUMBERS
from headrace.query.operation_memory import Tape
from headrace.query.options import ANY, NUMBER, check_options, one_of
from headrace.query.stages.server_stage import ServerStage
from headrace.query.stages.stage import JOINING, Document, DocumentStage, PipelineContext, Stage
from headrace.values.bson import MISSING, type_name
from headrace.values.order import sort_key

NORMALIZATIONS: Final = ("none", "sigmoid", "minMaxScaler")
_SCORE_DESCRIPTION: Final = (
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
                "value": score, "description": _SCORE_DESCRIPTION, "rawScore": raw, "normalization": self.normalization,
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


FUSIONS: Final = frozenset({"$rankFusion", "$scoreFusion"})
_RANK_CONSTANT: Final = 60
_SELECTING: Final = frozenset({"$geoNear", "$limit", "$match", "$sample", "$score", "$skip", "$sort"})
_NO_SEARCH: Final = frozenset({"$search", "$vectorSearch"})
"""These select too. Their parser refuses them."""
_RANKED: Final = (
    "All subpipelines to the $rankFusion stage must begin with one of $search, $vectorSearch, $geoNear, or have a "
    "custom $sort in the pipeline."
)
_SCORED: Final = (
    "All subpipelines to the $scoreFusion stage must begin with one of $search, $vectorSearch, or have a custom $score "
    "in the pipeline."
)
_DESCRIPTIONS: Final = {
    "$rankFusion": (
        "value output by reciprocal rank fusion algorithm, computed as sum of (weight * (1 / (60 + rank))) across "
        "input pipelines from which this document is output, from:"
    ),
    "$scoreFusion": (
        "the value calculated by combining the scores (either normalized or raw) across input pipelines from which "
        "this document is output from:"
    ),
}
Run = Callable[[list[Document]], Iterable[Document]]
"""Runs a pipeline over the collection."""


@dataclass(frozen=True, slots=True)
class FusionInput:
    """One pipeline. `made` are the values that it reads from `$meta`, by the field that holds them."""

    name: str
    pipeline: list[Document]
    made: Document
    weight: float = 1.0

    @property
    def wrapped(self) -> list[Document]:
        """The pipeline, with the values of `$meta` beside each document."""
        metadata = {into: {"$meta": name} for into, name in self.made.items()}
        return [*self.pipeline, {"$replaceWith": {"doc": "$$ROOT", **metadata}}]


@dataclass(frozen=True, slots=True)
class Fusion(ServerStage):
    """The parsed stage."""

    context: PipelineContext = field(default_factory=PipelineContext)
    inputs: tuple[FusionInput, ...] = ()
    normalization: str = "none"
    expression: CompiledExpression | None = None
    is_detailed: bool = False
    live: DocumentMetadata = field(default_factory=lambda: DocumentMetadata(SCORE))

    def documents(self, run: Run) -> Iterator[Document]:
        """Yield the documents in order of their scores. Reads all inputs first. Raises 292."""
        from headrace.query.pipeline import parse_pipeline, run_pipeline  # the table of stages is imported there

        context = PipelineContext(collation=self.context.collation, memory=self.context.memory)
        group = {"_id": "$doc._id", "doc": {"$first": "$doc"}, "inputs": {"$push": "$input"}}
        stages = (
            *parse_pipeline([{"$group": group}], context=context),
            DocumentStage(self.name, self.spec, self._combined),
            *parse_pipeline([{"$sort": {"score": -1, "_id": 1}}], context=context),
        )
        for item in run_pipeline(stages, self._found(run)):
            self.live.values = {SCORE: item["score"]}
            if self.is_detailed:
                self.live.values[SCORE_DETAILS] = item["details"]
            yield item["doc"]

    def _found(self, run: Run) -> Iterator[Document]:
        """Yield what each input found: the document, and its values of that input."""
        for index, source in enumerate(self.inputs):
            items = run(source.wrapped)
            values = self._ranked(source, items) if self.name == "$rankFusion" else self._scored(source, items)
            for document, found in values:
                yield {"doc": document, "input": {"index": index, **found}}

    def _ranked(self, source: FusionInput, items: Iterable[Document]) -> Iterator[tuple[Document, Document]]:
        """Yield each document with its rank. Documents with the same sort key have the same rank."""
        rank, before = 0, None
        for position, item in enumerate(items, 1):
            keys = item.get("key")
            key = None if keys is None else [sort_key(value, self.context.collation) for value in keys]
            if key is None or key != before:
                rank, before = position, key
            details = {"value": item["score"]} if "score" in item else {}
            score = source.weight * (1 / (rank + _RANK_CONSTANT))
            yield item["doc"], {"score": score, "rank": Int64(rank), "details": {**details, "details": []}}

    def _scored(self, source: FusionInput, items: Iterable[Document]) -> Iterator[tuple[Document, Document]]:
        """Yield each document with its normalized and weighted score."""

        def found(item: Document, score: float) -> tuple[Document, Document]:
            return item["doc"], {"score": score, "raw": item["raw"], "details": {"details": item.get("details", [])}}

        if self.normalization != "minMaxScaler":
            for item in items:
                score = sigmoid(item["raw"]) if self.normalization == "sigmoid" else item["raw"]
                yield found(item, score * source.weight)
            return
        weighted = ({**item, "score": item["raw"] * source.weight} for item in items)
        for item, scaled in with_scaled(weighted, self.context, self.name):
            yield found(item, scaled)

    def _combined(self, group: Document) -> Document:
        """Return a document with its score."""
        found = {values["index"]: values for values in group["inputs"]}
        scores = [found[index]["score"] if index in found else 0 for index in range(len(self.inputs))]
        if self.name == "$rankFusion":
            score = float(sum(scores))
        elif self.expression is None:
            score = sum(scores) / len(scores)
        else:
            names = {source.name: value for source, value in zip(self.inputs, scores)}
            score = score_of(self.expression(Env(group["doc"], {**self.context.bound, **names})))
        combined = {"_id": group["_id"], "doc": group["doc"], "score": score}
        return {**combined, "details": self._details(score, found)} if self.is_detailed else combined

    def _details(self, score: float, found: dict[int, Document]) -> Document:
        details: Document = {"value": score, "description": _DESCRIPTIONS[self.name]}
        if self.name == "$scoreFusion":
            combination = {"method": "average"}
            if self.expression is not None:
                expression = as_text({"string": self.spec["combination"]["expression"]})
                combination = {"method": "custom expression", "expression": expression}
            details |= {"normalization": self.normalization, "combination": combination}
        return {**details, "details": [self._detail(index, found.get(index)) for index in range(len(self.inputs))]}

    def _detail(self, index: int, values: Document | None) -> Document:
        """Return what one input contributed to a score."""
        name, weight = self.inputs[index].name, self.inputs[index].weight
        if self.name == "$rankFusion":
            if values is None:
                return {"inputPipelineName": name, "rank": "NA"}
            return {"inputPipelineName": name, "rank": values["rank"], "weight": weight, **values["details"]}
        raw, value = (0, 0) if values is None else (values["raw"], values["score"])
        detail = {"inputPipelineName": name, "inputPipelineRawScore": raw, "weight": weight, "value": value}
        return detail if values is None else {**detail, **values["details"]}


def is_fusion(pipeline: Sequence[Any]) -> bool:
    """Whether a pipeline begins with a fusion. On a view, each of its inputs begins with the view's stages."""
    return bool(pipeline) and type(pipeline[0]) is dict and not FUSIONS.isdisjoint(pipeline[0])


def parse_rank_fusion(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$rankFusion: {input: {pipelines}, combination: {weights}, scoreDetails}}`."""
    _check_spec(name, spec, context, {"pipelines": "object"}, {"weights": "object"})
    made = [_input(name, source, pipeline, context) for source, pipeline in _sorted_pipelines(spec)]
    inputs = _weighted(name, made, spec.get("combination", {}).get("weights", {}))
    return (_fusion(name, spec, context, inputs),)


def parse_score_fusion(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$scoreFusion: {input: {pipelines, normalization}, combination, scoreDetails}}`."""
    combinations = {"expression": ANY, "method": "string", "weights": "object"}
    _check_spec(name, spec, context, {"pipelines": "object", "normalization": "string"}, combinations)
    normalization = one_of("$scoreFusion.input.normalization", spec["input"]["normalization"], NORMALIZATIONS)
    combination = spec.get("combination", {})
    method = one_of("$scoreFusion.combination.method", combination.get("method", "avg"), ("avg", "expression"))
    made = [_input(name, source, pipeline, context) for source, pipeline in _sorted_pipelines(spec)]
    inputs = _weighted(name, made, combination.get("weights", {}))
    if "method" in combination and (method == "expression") != ("expression" in combination):
        raise CommandError(
            10017300,
            'combination.expression should only be specified when combination.method has the value "expression"',
        )
    expression = None
    if method == "expression":
        if "weights" in combination:
            raise CommandError(10017301, "both combination.expression and combination.weights cannot be specified")
        for source in inputs:
            check_variable_name(source.name, for_writing=True)
        names = context.parse_context().binding(*[source.name for source in inputs])
        expression = parse_expression(combination["expression"], names)
    return (replace(_fusion(name, spec, context, inputs), normalization=normalization, expression=expression),)


def _fusion(name: str, spec: Document, context: PipelineContext, inputs: tuple[FusionInput, ...]) -> Fusion:
    detailed = spec.get("scoreDetails", False)
    live = DocumentMetadata(SCORE, *[SCORE_DETAILS] * detailed)
    return Fusion(name, spec, context=context, inputs=inputs, is_detailed=detailed, live=live)


def _check_spec(
    name: str, spec: Any, context: PipelineContext, inputs: dict[str, str], combinations: dict[str, str]
) -> None:  # fmt: skip
    """Raise 9, 14, 40414 and 40415 for arguments of the wrong form, 11178500 inside a stage that joins."""
    if context.inside in JOINING:
        raise CommandError(11178500, f"{name} is not allowed in a sub-pipeline")
    check_options(name, spec, {"combination": "object", "input": "object", "scoreDetails": "bool"}, ["input"])
    check_options(f"{name}.input", spec["input"], inputs, inputs)
    if not spec["input"]["pipelines"]:
        raise CommandError(2, f"{name} must have at least one input pipeline")
    check_options(f"{name}.combination", spec.get("combination", {}), combinations)


def _sorted_pipelines(spec: Document) -> list[tuple[str, Any]]:
    """Return the pipelines in order of their names: so scores are added, and details listed."""
    return sorted(spec["input"]["pipelines"].items())


def _input(name: str, source: str, pipeline: Any, context: PipelineContext) -> FusionInput:
    """Return a checked input pipeline."""
    from headrace.query.match.index_conditions import has_text
    from headrace.query.pipeline import check_stage_names, parse_pipeline  # the table of stages is imported there

    if type(pipeline) is not list:
        raise CommandError(14, f"{name} input pipeline '{source}' must be an array of objects")
    check_stage_names(pipeline)
    _check_pipeline(name, pipeline)
    check_field_name(source)
    search = pipeline[0].get("$match")
    is_found = type(search) is dict and has_text(search)
    made = _made_ranked(pipeline, scored=is_found) if name == "$rankFusion" else _made_scored(pipeline, scored=is_found)
    checked = FusionInput(source, pipeline, made)
    text = None
    if context.search_in is not None and context.collection is not None:
        text = context.search_in(context.collection)
    parse_pipeline(checked.wrapped, context=replace(context, text=text, carried=None, sort_key=None, inside=""))
    return checked


def _made_ranked(pipeline: list[Document], *, scored: bool) -> Document:
    names = [next(iter(stage)) for stage in pipeline]
    last = max(index for index, stage in enumerate(names) if stage in ("$geoNear", "$sort"))
    made = {} if "$sample" in names[last:] else {"key": "sortKey"}
    return {**made, "score": SCORE} if scored else made


def _made_scored(pipeline: list[Document], *, scored: bool) -> Document:
    scores = [stage["$score"] for stage in pipeline if "$score" in stage]
    if not scores and not scored:
        raise CommandError(
            9402500,
            f"{_SCORED} Pipeline did not begin with a scored stage and did not contain an explicit $score stage.",
        )
    detailed = any(type(score) is dict and score.get("scoreDetails") is True for score in scores)
    return {"raw": SCORE, "details": SCORE_DETAILS} if detailed else {"raw": SCORE}


def _check_pipeline(name: str, pipeline: list[Document]) -> None:
    """Raise the error of an input pipeline that does not only select and order documents."""
    names = [next(iter(stage)) for stage in pipeline]
    ranks = name == "$rankFusion"
    rule = _RANKED if ranks else _SCORED
    if not pipeline:
        raise CommandError(9834300 if ranks else 9402503, f"{name} input pipeline cannot be empty. {rule}")
    if not FUSIONS.isdisjoint(names):
        raise CommandError(
            10473002 if ranks else 10473003,
            f"{name} input pipeline has a nested hybrid search stage ($rankFusion/$scoreFusion). {rule}",
        )
    if ranks and "$score" in names:
        raise CommandError(10614800, "$rankFusion input pipelines must not contain a $score stage.")
    if ranks and names[0] != "$geoNear" and "$sort" not in names and names[0] not in _NO_SEARCH:
        raise CommandError(
            9191100,
            f"Pipeline did not begin with a ranked stage and did not contain an explicit $sort stage. {rule}",
        )
    for stage in pipeline:
        reason = _why_not_selecting(*next(iter(stage.items())))
        if reason:
            raise CommandError(
                9191103 if ranks else 9402502,
                f"{reason} Only stages that retrieve, limit, or order documents are allowed.",
            )


def _why_not_selecting(stage: str, spec: Any) -> str:
    if stage not in _SELECTING and stage not in _NO_SEARCH:
        return f"{stage} is not a selection stage because it modifies or transforms the input documents."
    if stage == "$geoNear" and type(spec) is dict and not spec.keys().isdisjoint({"distanceField", "includeLocs"}):
        return (
            "$geoNear is only a selection stage if 'includeLocs' and 'distanceField' are not specified, because these "
            "options modify the input documents by adding output fields."
        )
    return ""


def _weighted(name: str, inputs: list[FusionInput], weights: Document) -> tuple[FusionInput, ...]:
    """Return the inputs with their weights. Raises 13118, 9460300, 9460301 and 9967500."""
    names = {source.name for source in inputs}
    for source, weight in weights.items():
        if source not in names:
            continue
        if type(weight) not in NUMBERS:
            raise CommandError(13118, f"the weight of pipeline '{source}' must be a number, not {type_name(weight)}")
        if not score_of(weight) >= 0:
            raise CommandError(
                9460300,
                f"{name[1:]}'s pipeline weight must be non-negative, but given {score_of(weight):g} for pipeline "
                f"'{source}'.",
            )
    unknown = [source for source in weights if source not in names]
    if len(weights) > len(names):
        raise CommandError(
            9460301,
            f"{name} input has more weights ({len(weights)}) than pipelines ({len(names)}). If 'combination.weights' "
            "is specified, there must be a less or equal number of weights as pipelines, each of which is unique and "
            f"existing. Possible extraneous specified weights = [{', '.join(unknown)}]",
        )
    if unknown:
        left = sorted(names - weights.keys())
        meant = [(source, difflib.get_close_matches(source, left, 1, 0.0) or left[:1]) for source in unknown]
        suggestions = ", ".join(f"(provided: '{source}' -> suggested: '{to[0]}')" for source, to in meant)
        raise CommandError(
            9967500,
            f"{name} stage contained ({len(unknown)}) weight(s) in 'combination.weights' that did not reference valid "
            f"pipeline names. Suggestions for valid pipeline names: {suggestions}",
        )
    return tuple(replace(source, weight=score_of(weights.get(source.name, 1))) for source in inputs)
