"""The interface of a stage, and the context in which stages are parsed.

Rule: a stage is parsed once into closures and has no state between runs; `apply` may be called any number of times. The
exception: `PipelineContext.bound` is written by an outer `$lookup` before each run of its sub-pipeline, and read by the
expressions in it. Another is `SortedKey`, which a `$sort` writes for each document and later stages read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from headrace import limits
from headrace.errors import CommandError
from headrace.query.expansion import CONTAINERS, check
from headrace.query.expressions import Env, ParseContext, less_bound, parse_expression
from headrace.query.expressions.expression import Evaluate
from headrace.query.operation_memory import UNBOUNDED, OperationMemory
from headrace.time_limit import limited

if TYPE_CHECKING:
    from headrace.query.collation import Collation
    from headrace.query.document_metadata import DocumentMetadata, Readers
    from headrace.query.match import Predicate
    from headrace.query.match.text_match import TextQuery

Document: TypeAlias = dict[str, Any]
DocumentFunction: TypeAlias = Callable[[Document], Any]
FindEqual: TypeAlias = Callable[[str | None, str, str], "EqualDocuments | None"]
ReadCollection: TypeAlias = Callable[[str | None, str, int], Iterable[Document]]
Describe: TypeAlias = Callable[[str, str, Any], Iterable[Document]]


@dataclass(frozen=True, slots=True)
class EqualDocuments:
    """Finds documents by equality through an index: `find` those with one of the values, of `count` in all."""

    find: Callable[[list[Any]], Iterable[Document]]
    count: int


JOINING: Final = frozenset({"$lookup", "$unionWith"})
"""The stages whose pipelines begin with the documents of another collection."""
_NO_METADATA: Final[Readers] = {}
_GENERATOR: Final = random.Random()
"""The generator of all pipelines: one takes 2.8 KB, which each change stream would hold."""


@dataclass(frozen=True, slots=True)
class PipelineContext:
    """The names that a pipeline may refer to, known when it is parsed.

    `variables` are the values of `$$` variables for the complete command: `let`, NOW, CLUSTER_TIME. `read_collection`
    returns the documents of another collection (database or None for `database`, collection, `depth`), each time from
    the start; None where no other collection may be read. `find_equal` returns, where an index leads to them, what
    gives the documents of another collection with one of some values at a path, perhaps with others. `describe` returns
    the answer of a stage such as `$collStats`, for a collection, name and argument of the stage. `collection` is
    None for `{aggregate: 1}`. `in_change_stream`: the stages follow a `$changeStream`. `bound` has the values of
    variables that an outer stage binds for each of its documents. `inside` is the name of the outer stage of a
    sub-pipeline, or empty; `depth` counts the stages around it that read another collection. `generator` is the
    source of random numbers of `$sample`. `memory` limits what blocking stages hold. `search_in` returns
    what parses a search of another collection, `text` parses the `$text` of the first stage; None elsewhere. `carried`
    is the metadata of documents from a search or a `$geoNear` on, and `sort_key` returns the evaluator of
    `{$meta: "sortKey"}`; None where no `$sort` comes before, and after a stage that reads ahead.
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

    def parse_context(self) -> ParseContext:
        """The names that an expression in a stage may refer to."""
        constants = less_bound(self.variables, self.bound)
        return ParseContext(constants, frozenset(self.bound), self.collation, metadata=self.metadata())

    def metadata(self) -> Readers:
        """The arguments of `$meta` that documents have a value of."""
        if self.sort_key is None and self.carried is None:
            return _NO_METADATA
        carried = {} if self.carried is None else self.carried.readers()
        return carried if self.sort_key is None else {**carried, "sortKey": self.sort_key}

    def expression(self, value: Any) -> Callable[[Document], Any]:
        """The expression of a value, as a function of a document that returns a value or MISSING."""
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
        from headrace.query.pipeline import parse_pipeline  # the table of stages lies between

        collection = changes.get("collection")
        text = None
        if inside in JOINING and collection is not None and self.search_in is not None:
            text = self.search_in(collection)
        inner = replace(self, inside=inside, sort_key=None, text=text, carried=None, **changes)
        return parse_pipeline(value, context=inner)

    def joining(self) -> PipelineContext:
        """The context of the sub-pipeline of a stage that reads another collection. Raises 232 at too great a depth."""
        most = limits.SUBPIPELINE_DEPTH_MAX
        if self.depth >= most:
            raise CommandError(232, f"Maximum number of nested sub-pipelines exceeded. Limit is {most}")
        return replace(self, depth=self.depth + 1)

    def read(self, database: str | None, collection: str) -> Iterable[Document]:
        """The documents of another collection. Raises 20 where none may be read."""
        if self.read_collection is None:
            raise CommandError(20, "this pipeline may not read other collections")
        return self.read_collection(database, collection, self.depth)


class Stage:
    """One parsed stage of a pipeline.

    `name` is the name that the client sent ("$set"), or that of the stage it is rewritten to, which MongoDB's errors
    name. `spec` is its argument as the client sent it.
    """

    __slots__ = ()
    allowed_in_change_stream: ClassVar[bool] = False
    name: str
    spec: Any

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """The documents that leave the stage; reads lazily where the stage's meaning allows."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class DocumentStage(Stage):
    """A stage that maps each document independently; `each` returns None for a document that is dropped."""

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
