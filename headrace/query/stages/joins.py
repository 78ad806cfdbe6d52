"""Joins of documents by equality of fields, for `$lookup` and `$graphLookup`.

Rule: a local array joins by each of its elements. A foreign document joins by every value of its path, as in a filter:
an array by each element and as a whole. A missing value joins as null, local or foreign.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.errors import CommandError
from headrace.query.operation_memory import StageMemory, size_of
from headrace.query.stages.stage import Document, PipelineContext
from headrace.values.bson import MISSING
from headrace.values.order import hash_key
from headrace.values.paths import array_index, located_values

if TYPE_CHECKING:
    from headrace.query.collation import Collation


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
