"""Joins of documents by equality of fields, for `$lookup` and `$graphLookup`.

Rule: a local array joins by each of its elements; a missing local value joins as null. A foreign document joins by
every value of its path, as in a filter: an array by each element and itself, a missing value as null.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from headrace.errors import CommandError
from headrace.query.operation_memory import StageMemory, size_of
from headrace.query.stages.stage import Document
from headrace.turns import gathered, in_pieces, sorted_in_pieces, tick, ticking
from headrace.values.bson import MISSING
from headrace.values.order import hash_key
from headrace.values.paths import array_index, located_values

if TYPE_CHECKING:
    from headrace.query.collation import Collation


def check_joined(name: str, database: str, collection: str) -> None:
    """Raise 73 for a collection that a stage of this name cannot read, because of how it is called."""
    if "\0" in collection:
        raise CommandError(73, "namespaces cannot have embedded null characters")
    if collection.startswith("."):
        raise CommandError(73, f"Collection names cannot start with '.': {collection}")
    if not collection or (name == "$unionWith" and collection.startswith("$cmd")):
        raise CommandError(73, f"invalid {name} namespace: {database}.{collection}")


def local_values(document: Document, path: tuple[str, ...]) -> Iterator[Any]:
    """The values at a local path: an array's elements, not the array; nothing where there is no value."""
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
    """Documents that are held for the run of a stage. Raises 146 where the process has no memory for them."""
    size = 0
    for document in documents:
        size += size_of(document)
        if size >= memory.step:
            memory.add(size)
            size = 0
        yield document


class ForeignIndex:
    """The documents of a foreign collection by the values they join by; built once per run of a stage."""

    __slots__ = ("_collation", "_positions", "documents")

    def __init__(self, documents: Iterable[Document], path: tuple[str, ...], collation: Collation | None) -> None:
        self.documents = gathered(documents)
        self._collation = collation
        self._positions: dict[Hashable, list[int]] = {}
        for position, document in enumerate(self.documents):
            tick()
            for key in {self._key(value) for value, _ in located_values(document, path)}:
                self._positions.setdefault(key, []).append(position)

    def matching(self, values: Iterable[Any]) -> list[Document]:
        """The documents that join with any of the values, each once, in the collection's order."""
        positions: set[int] = set()
        for key in {self._key(value) for value in values}:
            for piece in in_pieces(self._positions.get(key, ())):
                positions.update(piece)
        in_order = sorted_in_pieces(list(positions), int)
        return gathered(self.documents[position] for position in ticking(in_order))

    def _key(self, value: Any) -> Hashable:
        return hash_key(None if value is MISSING else value, self._collation)
