"""The language over a list in memory: matches, orders and changes, without a store, a planner or an index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from itertools import groupby
from typing import Any

from bson import Timestamp

from headrace.query.collation import Collation, parse_collation
from headrace.query.match import parse_filter
from headrace.query.projection import parse_projection
from headrace.query.sort import Descending, SortKey, parse_sort
from headrace.query.update.update import UpdateContext
from headrace.query.update.update_parser import parse_update
from headrace.values.bson import decode
from headrace.values.order import hash_key, sort_key
from headrace.values.paths import spread_values
from tests.differential.documents import raw, raw_unordered

Document = dict[str, Any]


class Difference(Exception):
    """Two ways to the same answer do not agree, or an answer is wrong."""


def collation_of(asked: Document) -> Collation | None:
    """Return the collation of a question or a statement."""
    return parse_collation(asked.get("collation"))


def test_of(spec: Document, collation: Collation | None = None) -> Callable[[Document], bool]:
    """Return the test of a filter, as it arrives when it was sent. Raises the `CommandError` of an invalid one."""
    return parse_filter(decode(raw(spec)), collation=collation).test


def order_of(asked: Document) -> SortKey | None:
    """Return the order of a question."""
    return parse_sort(asked["sort"], collation_of(asked)) if asked.get("sort") else None


def projected(documents: list[Document], asked: Document, *, kind: str = "find") -> list[Document]:
    """Return what the projection of a question leaves of documents."""
    if "projection" not in asked:
        return documents
    projection = parse_projection(asked["projection"], kind=kind)  # type: ignore[arg-type]
    return [projection(document) for document in documents]


def check_rows(got: list[Document], matched: list[Document], asked: Document, *, in_order: bool) -> None:
    """Raise `Difference` unless `got` can be the answer to a find; `matched` are all matches.

    Documents that sort alike may come in any order, and a limit may take any of them. `in_order`: without a sort the
    matches come in the order in which they are given.
    """
    order = order_of(asked)
    skip, limit = asked.get("skip", 0), asked.get("limit", 0)
    end = min(len(matched), skip + limit) if limit else len(matched)
    if len(got) != max(0, end - skip):
        raise Difference(f"{len(got)} documents, expected {max(0, end - skip)}")
    if order is not None:
        keyed = sorted(((order.key(document), document) for document in matched), key=lambda pair: pair[0])
        groups = [[document for _, document in alike] for _, alike in groupby(keyed, key=lambda pair: pair[0])]
    else:
        groups = [[document] for document in matched] if in_order else [matched]
    start = at = 0
    form = raw_unordered if "projection" in asked else raw
    for group in groups:
        first, last = max(start, skip), min(start + len(group), end)
        start += len(group)
        if last <= first:
            continue
        allowed = Counter(form(document) for document in projected(group, asked))
        rows = Counter(form(document) for document in got[at : at + last - first])
        at += last - first
        if not rows <= allowed:
            extra, lacking = rows - allowed, allowed - rows
            raise Difference(f"wrong documents {_shown(extra)}, instead of {_shown(lacking)}")


def _shown(rows: Counter[bytes]) -> str:
    return str([decode(row) for row in rows.elements()])[:500]


def check_distinct(got: list[Any], matched: list[Document], asked: Document) -> None:
    """Raise `Difference` unless each class of equal values is there once, as one of the matches has it."""
    collation, path = collation_of(asked), asked["path"].split(".")
    present = [value for document in matched for value in spread_values(document, path)]
    if any(raw({"": value}) not in {raw({"": other}) for other in present} for value in got):
        raise Difference(f"a value of no document in {got}")
    classes = [hash_key(value, collation) for value in got]
    if len(set(classes)) != len(classes) or set(classes) != {hash_key(value, collation) for value in present}:
        raise Difference(f"values {got}, of {present}")


def grouped(rows: list[Document], asked: Document, field: str) -> Counter[Hashable]:
    """Return the rows of a group in a form that does not depend on which of equal values names it."""
    collation = collation_of(asked)
    return Counter((hash_key(row["_id"], collation), str(row[field])) for row in rows)


def changed(document: Document, update: Any, *, now_ms: int) -> Document:
    """Return a document after an update. Raises the `CommandError` of an update that fails for it."""
    context = UpdateContext(now_ms=now_ms, timestamp=Timestamp(1, 1))
    sent = decode(raw({"u": update}))["u"]
    return decode(raw(parse_update(sent).apply(document, context).document))


def key_of(values: Iterable[Any], pattern: Document) -> tuple[Any, ...]:
    """Return a comparable key of the values of an index's fields."""
    keys = map(sort_key, values)
    return tuple(Descending(key) if direction == -1 else key for key, direction in zip(keys, pattern.values()))


def index_key(document: Document, pattern: Document) -> tuple[Any, ...] | None:
    """Return the key of a document; None where an array is on one of the paths."""
    values = []
    for path in pattern:
        value: Any = document
        for name in path.split("."):
            value = value.get(name) if type(value) is dict else None
            if type(value) is list:
                return None
        values.append(value)
    return key_of(values, pattern)
