"""`$lookup`: the matching documents of another collection, as an array in each document.

Rule: the other collection is read once for a run of the stage, and indexed by the foreign field. A pipeline without
variables and join fields runs once. Any other pipeline runs for each document, with its variables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace import limits
from headrace.errors import CommandError
from headrace.query.expressions.field_paths import check_variable_name, checked_path
from headrace.query.operation_memory import StageMemory, size_of
from headrace.query.options import ANY, check_object, check_options
from headrace.query.stages.joins import EqualityJoin, check_joined, counted, local_values
from headrace.query.stages.match_stage import Search
from headrace.query.stages.server_stage import ServerStage
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.query.stages.unwind import Unwind, with_nested
from headrace.values.bson import MISSING, type_name

_TYPES: Final = {
    "as": "string?", "foreignField": "string?", "from": ANY, "let": "object?", "localField": "string?",
    "pipeline": "array?",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class JoinFields:
    """The equality of a local and a foreign path."""

    local: tuple[str, ...]
    foreign: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LookupPipeline:
    """The pipeline of a lookup. Its expressions read their variables from the dict `live`."""

    stages: tuple[Stage, ...]
    let: tuple[tuple[str, Callable[[Document], Any]], ...]
    live: dict[str, Any]
    equality: tuple[tuple[str, ...], str] | None = None
    """A path and the variable to which the first `$match` compares the path."""

    def bind(self, document: Document, outer: Mapping[str, Any]) -> None:
        """Set the variables to their values for a document."""
        self.live.update(outer)
        self.live.update([(name, evaluate(document)) for name, evaluate in self.let])


@dataclass(frozen=True, slots=True)
class LookupStage(Stage):
    """Adds to each document, at `into`, the array of the documents that join with it."""

    name: str
    spec: Any
    source: tuple[str | None, str] | None
    into: tuple[str, ...]
    fields: JoinFields | None
    inner: LookupPipeline | None
    context: PipelineContext
    is_unwound: bool = False
    """Whether an `$unwind` of the array follows. MongoDB then makes no array."""

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """Each document with its array."""
        with self.context.memory.stage(self.name) as memory:
            find = self.finder(memory)
            for document in documents:
                yield with_nested(document, self.into, find(document))

    def finder(self, memory: StageMemory) -> Callable[[Document], list[Document]]:
        """Return a function from a document to the documents that join with it, for one run of the stage."""
        if self.fields is None:
            return self._piped_finder(memory)
        joined = self._joiner(self.fields, memory)
        if self.inner is None:
            return joined
        inner = self.inner
        return lambda document: self._run(inner, joined(document), document)

    def _joiner(self, fields: JoinFields, memory: StageMemory) -> Callable[[Document], list[Document]]:
        """Return the join by equality of fields."""
        join = EqualityJoin(self.context, self.name, self.source, fields.foreign, memory)

        def joined(document: Document) -> list[Document]:
            matching = join.matching(list(local_values(document, fields.local)) or [None])
            return matching if self.is_unwound or join.is_small else list(self._limited(matching))

        return joined

    def _piped_finder(self, memory: StageMemory) -> Callable[[Document], list[Document]]:
        inner = self.inner
        if inner is None:
            raise AssertionError("a lookup has fields or a pipeline")
        describes = inner.stages and isinstance(inner.stages[0], ServerStage)  # the stage makes its own documents
        source = None if describes else self.source
        foreign: Iterable[Document] = () if source is None else counted(self.context.read(*source), memory)
        if inner.let or self.context.bound:
            return self._bound_finder(inner, foreign, memory)
        answers: list[list[Document]] = []

        def once(document: Document) -> list[Document]:
            if not answers:
                answers.append(self._run(inner, foreign, document))
            return answers[0]

        return once

    def _bound_finder(
        self, inner: LookupPipeline, foreign: Iterable[Document], memory: StageMemory
    ) -> Callable[[Document], list[Document]]:
        """Return a function that runs the pipeline for each document, over the documents an index finds, or over
        all."""
        join = None
        if inner.equality is not None:
            join = EqualityJoin(self.context, self.name, self.source, inner.equality[0], memory)
        everything: list[list[Document]] = []

        def find(document: Document) -> list[Document]:
            candidates = None
            if join is not None and inner.equality is not None and not everything:
                inner.bind(document, self.context.bound)
                value = inner.live[inner.equality[1]]
                if type(value) not in (dict, list):
                    candidates = join.candidates([None if value is MISSING else value])
            if candidates is None:
                if not everything:
                    everything.append(list(foreign))
                candidates = everything[0]
            return self._run(inner, candidates, document)

        return find

    def _run(self, inner: LookupPipeline, foreign: Iterable[Document], document: Document) -> list[Document]:
        from headrace.query.pipeline import run_pipeline

        inner.bind(document, self.context.bound)
        return list(self._limited(run_pipeline(inner.stages, foreign)))

    def _limited(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Yield the documents that join with one document. Raises 4568 if they are too large."""
        size, most = 0, limits.LOOKUP_BYTES_MAX
        for document in documents:
            size += size_of(document)
            if size > most:
                of = "" if self.source is None else self.source[1]
                raise CommandError(
                    4568, f"Total size of documents in {of} matching pipeline's $lookup stage exceeds {most} bytes"
                )
            yield document


def with_unwinds(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """The stages, with `is_unwound` set in each `$lookup` whose array the next stage unwinds."""
    following = (*stages[1:], None)
    return tuple(
        replace(stage, is_unwound=isinstance(after, Unwind) and after.path == stage.into)
        if isinstance(stage, LookupStage)
        else stage
        for stage, after in zip(stages, following)
    )


def parse_lookup(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$lookup: {from, localField, foreignField, let, pipeline, as}}`."""
    check_object(spec, 9, "the $lookup stage specification must be an object, but found")
    if not spec.keys() & {"from", "pipeline"}:
        raise _no_source()
    check_options("$lookup", spec, _TYPES)
    if type(spec.get("from", "")) not in (str, dict):
        raise CommandError(9, f"$lookup argument 'from' must be a string or an object, is {type_name(spec['from'])}")
    options = {option: value for option, value in spec.items() if value is not None}
    check_options("$lookup", options, _TYPES, ["as"])
    for option in ("localField", "foreignField"):
        if options.get(option) == "":  # as if it were not there
            del options[option]
    piped = "pipeline" in options
    if not piped and "let" in options:
        raise CommandError(9, "$lookup with a 'let' argument must also specify 'pipeline'")
    if ("localField" in options) != ("foreignField" in options):
        raise CommandError(9, "$lookup requires both or neither of 'localField' and 'foreignField' to be specified")
    if not piped and "localField" not in options:
        raise CommandError(
            9, "$lookup requires either 'pipeline' or both 'localField' and 'foreignField' to be specified"
        )
    source = _source(name, options, context)
    inside = context.joining()
    inner = _inner(options, source, inside) if piped else None
    fields = None
    if "localField" in options:
        if inner is not None and inner.stages and isinstance(inner.stages[0], ServerStage):
            raise _comes_after_join(inner.stages[0])
        fields = JoinFields(checked_path(options["localField"]), checked_path(options["foreignField"]))
    return (LookupStage(name, spec, source, checked_path(options["as"]), fields, inner, context),)


def _comes_after_join(stage: ServerStage) -> CommandError:
    """The error of a stage that must be first, but the join by fields comes before it."""
    if isinstance(stage, Search):
        return CommandError(17313, "$match with $text is only allowed as the first pipeline stage")
    code = 40603 if stage.name == "$geoNear" else 40602
    return CommandError(code, f"{stage.name} is only valid as the first stage in a pipeline")


def _source(name: str, options: Document, context: PipelineContext) -> tuple[str | None, str] | None:
    """(database, collection) to read; None if the pipeline makes its own documents."""
    source = options.get("from")
    if type(source) is str:
        check_joined(name, context.database, source)
        return None, source
    if type(source) is dict:
        check_options("from", source, {"coll": ANY, "db": ANY})
        database, collection = source.get("db"), source.get("coll")
        if type(collection) is not str or type(database) is not str:
            raise CommandError(9, "$lookup argument 'from' must be a string, or an object of strings 'db' and 'coll'")
        if database == context.database:
            check_joined(name, database, collection)
            return None, collection
        raise CommandError(9, f"$lookup with syntax {{from: {{db, coll}}}} is not supported for db: {database}")
    pipeline = options.get("pipeline") or [{}]
    if type(pipeline[0]) is dict and "$documents" in pipeline[0]:
        return None
    raise _no_source()


def _no_source() -> CommandError:
    return CommandError(9, "must specify 'pipeline' when 'from' is empty")


def _inner(options: Document, source: tuple[str | None, str] | None, context: PipelineContext) -> LookupPipeline:
    let = options.get("let", {})
    for variable in let:
        check_variable_name(variable, for_writing=True)
    bindings = tuple((variable, context.expression(value)) for variable, value in let.items())
    live: dict[str, Any] = {**context.bound, **dict.fromkeys(let)}
    collection = None if source is None else source[1]
    stages = context.subpipeline(options["pipeline"], "$lookup", collection=collection, bound=live)
    has_own = bool(stages) and isinstance(stages[0], ServerStage)
    return LookupPipeline(stages, bindings, live, None if has_own else _equality(options["pipeline"], let))


def _equality(pipeline: list[Any], let: Document) -> tuple[tuple[str, ...], str] | None:
    """The first `$eq` comparison of a path with a variable in a `$match` at the beginning of the pipeline."""
    match = pipeline[0].get("$match") if pipeline and type(pipeline[0]) is dict else None
    expression = match.get("$expr") if type(match) is dict else None
    conditions = expression.get("$and", [expression]) if type(expression) is dict else []
    for condition in conditions if type(conditions) is list else []:
        operands = condition.get("$eq") if type(condition) is dict else None
        if type(operands) is not list or [type(item) for item in operands] != [str, str]:
            continue
        for path, variable in (operands, operands[::-1]):
            if path.startswith("$") and not path.startswith("$$") and variable[:2] == "$$" and variable[2:] in let:
                return checked_path(path[1:]), variable[2:]
    return None
