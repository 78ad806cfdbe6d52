"""Scans for tailable cursors over a capped collection or the oplog. They continue when documents are added.

Unlike a generator, each iterator here can be called again after its end, and resumes with newer documents. A cursor
that cannot continue ends with MongoDB's error: 136 if the capped collection has dropped the document at its position,
175 if the collection was dropped or renamed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from headrace.cursors.collection_scan import Scan
from headrace.errors import CommandError
from headrace.query.operation_memory import encoded
from headrace.store.catalog import Collection
from headrace.store.view import View
from headrace.turns import tick
from headrace.values.bson import decode


class TailableScan(Scan):
    """The documents of a capped collection in natural order, past the last one read while that document exists."""

    __slots__ = ("_namespace",)

    def __init__(self, view: Callable[[], View], collection: Collection) -> None:
        super().__init__(view, collection)
        self._namespace = collection.namespace  # a rename changes the collection's

    def _chunk(self) -> list[bytes] | None:
        self._check()
        return super()._chunk()

    def _check(self) -> None:
        view, collection, last = self._view(), self._collection, self._last
        current = view.collection(self._namespace)
        if current is None or current.number != collection.number:
            raise CommandError(175, f"collection dropped. UUID {UUID(bytes=collection.uuid)}")
        if last is not None and view.by_record(collection, last) is None:
            raise CommandError(
                136,
                "CollectionScan died due to position in capped collection being deleted. "
                f"Last seen record id: RecordId({int.from_bytes(last, 'big')})",
            )


class Matching:
    """An iterator of the raw documents that a filter accepts."""

    __slots__ = ("_documents", "_predicate")

    def __init__(self, documents: Iterator[bytes], predicate: Callable[[dict[str, Any]], bool]) -> None:
        self._documents = documents
        self._predicate = predicate

    def __iter__(self) -> Matching:
        return self

    def __next__(self) -> bytes:
        for raw in self._documents:
            tick()
            if self._predicate(decode(raw)):
                return raw
        raise StopIteration


class Skipping:
    """An iterator of all raw documents but the first `count`."""

    __slots__ = ("_documents", "_left")

    def __init__(self, documents: Iterator[bytes], count: int) -> None:
        self._documents = documents
        self._left = count

    def __iter__(self) -> Skipping:
        return self

    def __next__(self) -> bytes:
        for raw in self._documents:
            tick()
            if not self._left:
                return raw
            self._left -= 1
        raise StopIteration


class Projected:
    """An iterator of raw documents after a projection."""

    __slots__ = ("_documents", "_project")

    def __init__(self, documents: Iterator[bytes], project: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._documents = documents
        self._project = project

    def __iter__(self) -> Projected:
        return self

    def __next__(self) -> bytes:
        return encoded(self._project(decode(next(self._documents))))
