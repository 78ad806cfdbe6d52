"""Scans for tailable cursors over a capped collection or the oplog, which go on when documents are added.

Unlike a generator, each iterator here can be called again after it has ended, and resumes with newer documents.
A cursor ends with an error where it cannot go on: 136 when the capped collection has dropped the document at which it
stood, 175 when the collection has been dropped or renamed (both as MongoDB's).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from headrace.cursors.collection_scan import Scan
from headrace.errors import CommandError
from headrace.query.expansion import encoded
from headrace.store.catalog import Collection
from headrace.store.view import View
from headrace.turns import tick
from headrace.values.bson import decode


class TailableScan(Scan):
    """A collection's documents in natural order, past the last that was read as long as that is there."""

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
    """The raw documents that a filter accepts."""

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
    """All but the first `count` raw documents."""

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
    """Raw documents as a projection shows them."""

    __slots__ = ("_documents", "_project")

    def __init__(self, documents: Iterator[bytes], project: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._documents = documents
        self._project = project

    def __iter__(self) -> Projected:
        return self

    def __next__(self) -> bytes:
        return encoded(self._project(decode(next(self._documents))))
