"""Stages that read another collection: `$lookup`, `$graphLookup`, `$unionWith`; joins by equality of fields.

Rule: a local array joins by each of its elements. A foreign document joins by every value of its path, as in a filter:
an array by each element and as a whole. A missing value joins as null, local or foreign.

Rule of `$lookup`: the other collection is read once for a run of the stage, and indexed by the foreign field. A
pipeline without variables and join fields runs once. Any other pipeline runs for each document, with its variables.

Rule of `$graphLookup`: a document is reached once, at its least depth. Documents are in the order of the steps. Within
a step they are in the collection's order (MongoDB guarantees none).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from bson import Int64

from headrace import limits
from headrace.errors import CommandError
from headrace.query.expressions.expression import check_variable_name, checked_path
from headrace.query.expressions.numbers import NUMBERS, int64_of, to_long
from headrace.query.operation_memory import StageMemory, size_of
from headrace.query.options import ANY, check_object, check_options
from headrace.query.stages.match_stage import Search
from headrace.query.stages.reshaping import Unwind, with_nested
from headrace.query.stages.server_stage import ServerStage
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.values.bson import MISSING, to_string, type_name
from headrace.values.order import hash_key
from headrace.values.paths import array_index, located_values

if TYPE_CHECKING:
    from headrace.query.collation import Collation
    from headrace.query.match import Predicate


def check_joined(name: str, database: str, collection: str) -> None:
    """Raise 73 for a collection whose name does not allow a stage of this name to read it."""
    if "\0" in collection:
        raise CommandError(73, "namespaces cannot have embedded null characters")
    if collection.startswith("."):
        raise CommandError(73, f"Collection names cannot start with '.': {collection}")
    if not collection and name == "$unionWith":  # MongoDB's message lacks the spaces, too
        raise CommandError(73, f"Namespace {database}is not a valid collection name")
    if not collection or (name == "$unionWith" and collection.startswith("$cmd")):
        raise CommandError(73, f"invalid {name} namespace: {database}.{collection}")


def local_values(document: Document, path: tuple[str, ...]) -> Iterator[Any]:
    """The values at a local path: the elements of an array, not the array; nothing if there is no value."""
    value = document.get(path[0], MISSING)
    if len(path) == 1:
        yield from _trailing(value)
    elif type(value) is dict:
        yield from local_values(value, path[1:])
    elif type(value) is list:
        yield from _in_array(value, path[1:])


def _in_array(array: list[Any], path: tuple[str, ...]) -> Iterator[Any]:
    for item in array:
        if type(item) is dict:
            yield from local_values(item, path)
    index = array_index(path[0])
    if index is None or index >= len(array):
        return
    item = array[index]
    if len(path) == 1:
        yield from _trailing(item)
    elif type(item) is dict:
        yield from local_values(item, path[1:])


def _trailing(value: Any) -> Iterable[Any]:
    if type(value) is list:
        return value
    return () if value is MISSING else (value,)


def counted(documents: Iterable[Document], memory: StageMemory) -> Iterator[Document]:
    """Count the documents that a stage holds during its run. Raises 146 if the process has no memory for them."""
    size = 0
    for document in documents:
        size += size_of(document)
        if size >= memory.step:
            memory.add(size)
            size = 0
        yield document


_LOOKUP_WEIGHT: Final = 10
"""About how many documents can be read in the time of one lookup through an index."""


class EqualityJoin:
    """A join by equality. It uses an index of the other collection, if there is one, as long as there are few lookups
    compared with the collection's size. Otherwise it reads the complete collection, once."""

    __slots__ = (
        "_context", "_count", "_equal", "_everything", "_foreign", "_memory", "_name", "_path", "_restriction",
        "is_small",
    )  # fmt: skip

    def __init__(
        self, context: PipelineContext, name: str, source: tuple[str | None, str] | None, path: tuple[str, ...],
        memory: StageMemory, restriction: Callable[[Document], bool] | None = None,
    ) -> None:  # fmt: skip
        """Prepare a join. Documents that do not pass `restriction` do not join."""
        self._context = context
        self._name = name
        self._path = path
        self._memory = memory
        self._restriction = restriction
        self._foreign: Iterable[Document] = () if source is None else context.read(*source)
        self._everything: ForeignIndex | None = None
        self._count = 0
        self.is_small = False
        """Whether the documents last read, of which only some may join, fit the limit for joined documents."""
        self._equal = None
        if source is not None and context.find_equal is not None and context.collation is None:
            self._equal = context.find_equal(*source, ".".join(path))

    def candidates(self, values: list[Any]) -> Iterable[Document] | None:
        """Find documents through the index that may join with any of the values. None if reading all is better."""
        self._count += len(values)
        equal = self._equal
        if equal is None or self._everything is not None or self._count * _LOOKUP_WEIGHT > equal.count:
            return None
        return equal.find(values)

    def matching(self, values: list[Any]) -> list[Document]:
        """The documents that join with any of the values, each once."""
        candidates = self.candidates(values)
        if candidates is not None:
            return self._joined(candidates, values)
        if self._everything is None:
            self._everything = self._index(self._foreign, self._memory)
        self.is_small = self._memory.used + self._memory.step <= limits.LOOKUP_BYTES_MAX
        return self._everything.matching(values)

    def _joined(self, candidates: Iterable[Document], values: list[Any]) -> list[Document]:
        """Return the candidates that join."""
        keys = {join_key(value, None) for value in values}
        matching = []
        with self._context.memory.stage(self._name) as memory:
            for document in counted(candidates, memory):
                if self._restriction is not None and not self._restriction(document):
                    continue
                if any(join_key(value, None) in keys for value, _ in located_values(document, self._path)):
                    matching.append(document)
            self.is_small = memory.used + memory.step <= limits.LOOKUP_BYTES_MAX
        return matching

    def _index(self, documents: Iterable[Document], memory: StageMemory) -> ForeignIndex:
        if self._restriction is not None:
            documents = filter(self._restriction, documents)
        return ForeignIndex(counted(documents, memory), self._path, self._context.collation)


class ForeignIndex:
    """The documents of a foreign collection by the values that they join by. Built once per run of a stage."""

    __slots__ = ("_collation", "_positions", "documents")

    def __init__(self, documents: Iterable[Document], path: tuple[str, ...], collation: Collation | None) -> None:
        self.documents: list[Document] = []
        self._collation = collation
        self._positions: dict[Hashable, list[int]] = {}
        for position, document in enumerate(documents):
            self.documents.append(document)
            for key in {join_key(value, collation) for value, _ in located_values(document, path)}:
                self._positions.setdefault(key, []).append(position)

    def matching(self, values: Iterable[Any]) -> list[Document]:
        """The documents that join with any of the values, each once, in the collection's order."""
        positions: set[int] = set()
        for key in {join_key(value, self._collation) for value in values}:
            positions.update(self._positions.get(key, ()))
        return [self.documents[position] for position in sorted(positions)]


def join_key(value: Any, collation: Collation | None) -> Hashable:
    """Return a key that is equal for values that join. A missing value joins as null."""
    return hash_key(None if value is MISSING else value, collation)


# $graphLookup.


_TEXTS = ("from", "as", "connectFromField", "connectToField", "depthField")
_REQUIRED = ("from", "as", "startWith", "connectFromField", "connectToField")


@dataclass(frozen=True, slots=True)
class GraphLookup(Stage):
    """Adds to each document, at `into`, the array of the documents reachable from it."""

    name: str
    spec: Any
    source: str
    into: tuple[str, ...]
    start: Callable[[Document], Any]
    connect_from: tuple[str, ...]
    connect_to: tuple[str, ...]
    depth_path: tuple[str, ...] | None
    depth_max: int | None
    restriction: Predicate | None
    context: PipelineContext

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """Each document with its array. The other collection is read through an index, or once."""
        with self.context.memory.stage(self.name) as memory:
            join = EqualityJoin(
                self.context, self.name, (None, self.source), self.connect_to, memory, self.restriction
            )  # fmt: skip
            for document in documents:
                yield with_nested(document, self.into, list(self._reached(document, join, memory.bytes_max)))

    def _reached(self, document: Document, join: EqualityJoin, bytes_max: int) -> Iterator[Document]:
        """Return the reachable documents. Raises 40099 if they are more than the stage may hold."""
        size = 0
        start = self.start(document)
        frontier = start if type(start) is list else [] if start is MISSING else [start]
        visited: set[Any] = set()
        depth = 0
        while frontier and (self.depth_max is None or depth <= self.depth_max):
            following: list[Any] = []
            for reached in self.context.paced(join.matching(frontier)):
                identity = hash_key(reached.get("_id", MISSING), self.context.collation)
                if identity in visited:
                    continue
                visited.add(identity)
                size += size_of(reached)
                if size > bytes_max:
                    raise CommandError(40099, "$graphLookup reached maximum memory consumption")
                following.extend(local_values(reached, self.connect_from))
                yield reached if self.depth_path is None else with_nested(reached, self.depth_path, Int64(depth))
            frontier, depth = following, depth + 1


def parse_graph_lookup(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$graphLookup: {from, startWith, connectFromField, connectToField, as, ...}}`."""
    check_object(spec, 9, "the $graphLookup stage specification must be an object, but found")
    if type(spec.get("from")) is not str:
        raise CommandError(9, f"missing 'from' option to $graphLookup stage specification: {to_string(spec)}")
    for option, value in spec.items():
        _check_option(option, value)
    if any(option not in spec for option in _REQUIRED):
        raise CommandError(
            40105,
            "$graphLookup requires 'from', 'as', 'startWith', 'connectFromField', and 'connectToField'.",
        )
    check_joined(name, context.database, spec["from"])
    context.joining()
    restriction = spec.get("restrictSearchWithMatch")
    stage = GraphLookup(
        name,
        spec,
        source=spec["from"],
        into=checked_path(spec["as"]),
        start=context.expression(spec["startWith"]),
        connect_from=checked_path(spec["connectFromField"]),
        connect_to=checked_path(spec["connectToField"]),
        depth_path=checked_path(spec["depthField"]) if "depthField" in spec else None,
        depth_max=_depth_max(spec["maxDepth"]) if "maxDepth" in spec else None,
        restriction=None if restriction is None else context.predicate(restriction),
        context=context,
    )
    return (stage,)


def _check_option(option: str, value: Any) -> None:
    if option in _TEXTS:
        if type(value) is not str:
            raise CommandError(40103, f"expected string as argument for {option}, found: {type_name(value)}")
    elif option == "maxDepth":
        _depth_max(value)
    elif option == "restrictSearchWithMatch":
        if type(value) is not dict:
            raise CommandError(40185, f"restrictSearchWithMatch must be an object, found {type_name(value)}")
    elif option != "startWith":
        raise CommandError(40104, f"unknown argument to $graphLookup: {option}")


def _depth_max(value: Any) -> int:
    if type(value) not in NUMBERS:
        raise CommandError(40100, f"maxDepth requires numeric argument, found {type_name(value)}")
    if to_long(value) < 0:
        raise CommandError(40101, f"maxDepth requires a nonnegative argument, found: {value}")
    number = int64_of(value)
    if number is None:
        raise CommandError(40102, f"maxDepth could not be represented as a long long: {value}")
    return number


# $unionWith.


@dataclass(frozen=True, slots=True)
class UnionWith(Stage):
    """Appends the documents of `collection` after `stages`. Without a collection, the stages make their own
    documents."""

    name: str
    spec: Any
    collection: str | None
    stages: tuple[Stage, ...]
    context: PipelineContext

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """The input documents, then the appended ones."""
        from headrace.query.pipeline import run_pipeline

        yield from documents
        others = () if self.collection is None else self.context.read(None, self.collection)
        yield from run_pipeline(self.stages, others)


def parse_union_with(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$unionWith: collection}` or `{$unionWith: {coll, pipeline}}`."""
    options = {"coll": spec} if type(spec) is str else spec
    check_object(options, 9, "the $unionWith stage specification must be an object or string, but found")
    check_options("$unionWith", options, {"coll": "string", "pipeline": "array"})
    collection, pipeline = options.get("coll"), options.get("pipeline", [])
    if collection is not None:
        check_joined(name, context.database, collection)
    stages = context.joining().subpipeline(pipeline, "$unionWith", collection=collection)
    if collection is None and (not stages or stages[0].name != "$documents"):
        raise CommandError(
            9, "$unionWith stage without explicit collection must have a pipeline with $documents as first stage"
        )
    return (UnionWith(name, spec, collection, stages, context),)


# $lookup.


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
