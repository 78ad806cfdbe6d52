"""The interface of a stage, and the context in which stages are parsed.

Rule: a stage is parsed once into closures and has no state between runs. `apply` may be called any number of times.
There are two exceptions. An outer `$lookup` writes `PipelineContext.bound` before each run of its sub-pipeline, whose
expressions read it. A `$sort` writes `SortedKey` for each document, and later stages read it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from headrace import limits
from headrace.errors import CommandError
from headrace.query.expressions import Env, ParseContext, less_bound, parse_expression
from headrace.query.expressions.expression import FOLDING_PREFIX, Evaluate
from headrace.query.operation_memory import CONTAINERS, UNBOUNDED, OperationMemory, check
from headrace.time_limit import limited
from headrace.turns import paced, tick

if TYPE_CHECKING:
    from headrace.query.collation import Collation
    from headrace.query.document_metadata import DocumentMetadata, Readers
    from headrace.query.match import Predicate
    from headrace.query.match.index_conditions import TextQuery

Document: TypeAlias = dict[str, Any]
DocumentFunction: TypeAlias = Callable[[Document], Any]
FindEqual: TypeAlias = Callable[[str | None, str, str], "EqualDocuments | None"]
ReadCollection: TypeAlias = Callable[[str | None, str, int], Iterable[Document]]
Describe: TypeAlias = Callable[[str, str, Any], Iterable[Document]]


@dataclass(frozen=True, slots=True)
class EqualDocuments:
    """Finds documents that equal one of some values, through an index. `count` is the size of the collection."""

    find: Callable[[list[Any]], Iterable[Document]]
    count: int


JOINING: Final = frozenset({"$lookup", "$unionWith"})
"""The stages whose pipelines begin with the documents of another collection."""
_NO_METADATA: Final[Readers] = {}
_GENERATOR: Final = random.Random()
"""The generator shared by all pipelines. Each generator takes 2.8 KB, and every change stream would hold one."""


@dataclass(frozen=True, slots=True)
class PipelineContext:
    """The names that a pipeline may refer to, known when it is parsed.

    `variables` are the values of `$$` variables for the complete command: `let`, NOW, CLUSTER_TIME. `bound` has the
    values of variables that an outer stage binds for each of its documents. `collection` is None for `{aggregate: 1}`.
    `in_change_stream`: the stages follow a `$changeStream`.

    `read_collection` returns the documents of another collection (database or None for `database`, collection,
    `depth`), each time from the start. It is None if no other collection may be read. `find_equal` returns an
    `EqualDocuments` for a path in another collection, if an index supports it; its documents may include non-matching
    ones. `describe` returns the answer of a stage such as `$collStats`, for a collection, and the name and argument of
    the stage.

    `inside` is the name of the outer stage of a sub-pipeline, or empty. `depth` counts the enclosing stages that read
    another collection. `generator` is the source of random numbers of `$sample`. `memory` limits the memory of blocking
    stages. `search_in` returns the parser of a search of another collection. `text` parses the `$text` of the first
    stage; it is None in later stages. `carried` is the metadata of documents after a stage that makes some. `sort_key`
    returns the evaluator of `{$meta: "sortKey"}`. It is None before the first `$sort` and after a stage that reads
    ahead.
    """

    database: str = ""
    collection: str | None = None
    collation: Collation | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    read_collection: ReadCollection | None = None
    find_equal: FindEqual | None = None
    describe: Describe | None = None
    in_change_stream: bool = False
    bound: Mapping[str, Any] = field(default_factory=dict)
    inside: str = ""
    depth: int = 0
    generator: random.Random = _GENERATOR
    memory: OperationMemory = UNBOUNDED
    sort_key: Callable[[], Evaluate] | None = None
    search_in: Callable[[str], TextQuery | None] | None = None
    text: TextQuery | None = None
    carried: DocumentMetadata | None = None

    tick = staticmethod(tick)
    """Pause the command if its turn is over. Called between documents."""
    paced = staticmethod(paced)
    """Yield the documents of an iterable, with a tick before each."""

    def parse_context(self) -> ParseContext:
        """The names that an expression in a stage may refer to."""
        constants = less_bound(self.variables, self.bound)
        return ParseContext(constants, frozenset(self.bound), self.collation, metadata=self.metadata())

    def metadata(self) -> Readers:
        """The arguments of `$meta` for which documents have a value."""
        if self.sort_key is None and self.carried is None:
            return _NO_METADATA
        carried = {} if self.carried is None else self.carried.readers()
        return carried if self.sort_key is None else {**carried, "sortKey": self.sort_key}

    def expression(self, value: Any) -> Callable[[Document], Any]:
        """Return the expression of a value, as a function from a document to a value or MISSING."""
        evaluate, bound = parse_expression(value, self.parse_context()).evaluate, self.bound

        def checked(document: Document) -> Any:
            value = evaluate(Env(document, bound))
            return check(value) if type(value) in CONTAINERS else value

        return checked

    def predicate(self, value: Document) -> Predicate:
        """The predicate of a filter."""
        from headrace.query.match import parse_filter

        return parse_filter(value, collation=self.collation, variables=self.variables, bound=self.bound, text=self.text)

    def projection(self, value: Document) -> Callable[[Document], Document]:
        """The projection of a specification, as a function of a document."""
        from headrace.query.projection import parse_projection

        return parse_projection(
            value, kind="aggregate", collation=self.collation, variables=self.variables, bound=self.bound,
            metadata=self.metadata(),
        )  # fmt: skip

    def subpipeline(self, value: Any, inside: str, **changes: Any) -> tuple[Stage, ...]:
        """The stages of a pipeline inside the stage `inside`; `changes` are fields of the context."""
        from headrace.query.pipeline import parse_pipeline  # the table of stages is imported there

        collection = changes.get("collection")
        text = None
        if inside in JOINING and collection is not None and self.search_in is not None:
            text = self.search_in(collection)
        carried = self.carried if inside == "$facet" else None
        inner = replace(self, inside=inside, sort_key=None, text=text, carried=carried, **changes)
        return parse_pipeline(value, context=inner)

    def joining(self) -> PipelineContext:
        """The context of the sub-pipeline of a stage that reads another collection. Raises 232 if stages nest too
        deeply."""
        most = limits.SUBPIPELINE_DEPTH_MAX
        if self.depth >= most:
            raise CommandError(232, f"Maximum number of nested sub-pipelines exceeded. Limit is {most}")
        return replace(self, depth=self.depth + 1)

    def read(self, database: str | None, collection: str) -> Iterable[Document]:
        """The documents of another collection. Raises 20 if none may be read."""
        if self.read_collection is None:
            raise CommandError(20, "this pipeline may not read other collections")
        return self.read_collection(database, collection, self.depth)


class Stage:
    """One parsed stage of a pipeline.

    `name` is the name that the client sent ("$set"), or the name of the stage to which it is rewritten, which MongoDB's
    errors use. `spec` is its argument as the client sent it.
    """

    __slots__ = ()
    allowed_in_change_stream: ClassVar[bool] = False
    name: str
    spec: Any

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """The documents that leave the stage. It reads lazily if its meaning allows."""
        raise NotImplementedError


def invalid(name: str, error: CommandError) -> CommandError:
    """Return the error of a stage's specification: named after the stage, unless a constant failed."""
    if error.message.startswith(FOLDING_PREFIX):
        return error
    return error.behind(f"Invalid {name} :: caused by :: ")


@dataclass(frozen=True, slots=True)
class DocumentStage(Stage):
    """A stage that maps each document independently. `each` returns None for a document to drop."""

    name: str
    spec: Any
    each: Callable[[Document], Document | None]
    allowed_in_change_stream: ClassVar[bool] = True

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """The documents that are not dropped, in order."""
        each = limited(self.each)
        for document in documents:
            changed = each(document)
            if changed is not None:
                yield changed


Parser: TypeAlias = Callable[[str, Any, PipelineContext], tuple[Stage, ...]]
