"""The plan of a filter as `explain` reports it, and a view that counts keys and documents examined.

    IDHACK     the document of one `_id`
    IXSCAN     the index on `_id`: some keys, a range, or all of them in order; the documents are fetched
    COLLSCAN   every document
    EOF        there is no collection

Rule: `Finder` and `sources` choose the plan; this asks them the same questions in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from headrace.execution.plan import Finder
from headrace.query.collation import Collation
from headrace.store.catalog import Collection, Index
from headrace.store.view import View

Stage = dict[str, Any]
_LOGICAL: Final = frozenset({"$and", "$nor", "$or"})


class Examined:
    """How many keys and documents a command has examined, however often it has paused."""

    __slots__ = ("documents", "keys")

    def __init__(self) -> None:
        self.keys = 0
        self.documents = 0

    def counting(self, view: View) -> View:
        """A view that counts what it gives out."""
        return CountingView(view, self)


class CountingView(View):
    """A view that counts the keys and documents it gives out."""

    __slots__ = ("_examined",)

    def __init__(self, base: View, examined: Examined) -> None:
        super().__init__(base.store, base.kv)
        self._examined = examined

    def by_id(self, collection: Collection, id_key: bytes) -> tuple[bytes, bytes] | None:
        match = super().by_id(collection, id_key)
        self._examined.keys += 1
        self._examined.documents += match is not None
        return match

    def scan_chunk(
        self, collection: Collection, *, after: bytes | None = None, backward: bool = False
    ) -> list[tuple[bytes, bytes]]:
        chunk = super().scan_chunk(collection, after=after, backward=backward)
        self._examined.documents += len(chunk)
        return chunk

    def scan(
        self, collection: Collection, *, after: bytes | None = None, backward: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for item in super().scan(collection, after=after, backward=backward):
            self._examined.documents += 1
            yield item

    def index_keys(
        self, index: Index, low: bytes, high: bytes, *, backward: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for item in super().index_keys(index, low, high, backward=backward):
            self._examined.keys += 1
            yield item

    def fetch(self, collection: Collection, index: Index, record: bytes) -> bytes:
        self._examined.documents += 1
        return super().fetch(collection, index, record)

    def scan_ids(
        self, collection: Collection, low: bytes, high: bytes, *, backward: bool = False
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        for item in super().scan_ids(collection, low, high, backward=backward):
            self._examined.keys += 1
            self._examined.documents += 1
            yield item


def access(
    collection: Collection | None, spec: dict[str, Any], collation: Collation | None, variables: dict[str, Any] | None,
    *, backward: bool = False, id_order: int | None = None,
) -> Stage:  # fmt: skip
    """The stage that reads the matches, by `_id` where `id_order` is 1 or -1. Raises what a bad filter raises."""
    if collection is None:
        return {"stage": "EOF"}
    finder = Finder(collection, spec, collation, variables)
    if finder.is_by_id:
        return {"stage": "IDHACK"}
    ordered = id_order is not None and collation is None and not collection.long_ids
    if finder.has_id_keys or (finder.id_range is not None and not backward) or ordered:
        direction = -1 if ordered and not finder.has_id_keys and id_order == -1 else 1
        return _fetch(spec, direction)
    return {"stage": "COLLSCAN"} | _filter(spec) | {"direction": "backward" if backward else "forward"}


def gives_id_order(stage: Stage) -> bool:
    """Whether the documents come sorted by `_id` because they are read so."""
    return stage["stage"] in ("EOF", "FETCH", "IDHACK")


def _fetch(spec: dict[str, Any], direction: int) -> Stage:
    scan = {
        "stage": "IXSCAN", "keyPattern": {"_id": 1}, "indexName": "_id_", "isMultiKey": False, "isUnique": True,
        "isSparse": False, "isPartial": False, "indexVersion": 2,
        "direction": "forward" if direction == 1 else "backward",
    }  # fmt: skip
    return {"stage": "FETCH"} | _filter(spec) | {"inputStage": scan}


def _filter(spec: dict[str, Any]) -> Stage:
    return {"filter": parsed_query(spec)} if spec else {}


def parsed_query(spec: dict[str, Any]) -> dict[str, Any]:
    """A filter with every condition written out: `{a: 1, b: {$gt: 1, $lt: 5}}` is an `$and` of three."""
    conditions: list[dict[str, Any]] = []
    for name, value in spec.items():
        if name == "$and":
            conditions += [part for item in value for part in _conjuncts(parsed_query(item))]
        elif name in _LOGICAL:
            conditions.append({name: [parsed_query(item) for item in value]})
        elif name.startswith("$"):
            if name != "$comment":
                conditions.append({name: value})
        elif type(value) is dict and next(iter(value), "").startswith("$") and "$ref" not in value:
            conditions += [{name: part} for part in _conditions(value)]
        else:
            conditions.append({name: {"$eq": value}})
    return conditions[0] if len(conditions) == 1 else {"$and": conditions} if conditions else {}


def _conjuncts(parsed: dict[str, Any]) -> list[dict[str, Any]]:
    return parsed["$and"] if list(parsed) == ["$and"] else [parsed] if parsed else []


def _conditions(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each operator of a field by itself, but for a regular expression and its options."""
    for name, operand in value.items():
        if name == "$regex" and "$options" in value:
            yield {"$regex": operand, "$options": value["$options"]}
        elif name != "$options":
            yield {name: operand}
