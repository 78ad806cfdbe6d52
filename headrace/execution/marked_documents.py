"""Documents marked with their record number and index key, for `showRecordId`, `returnKey`, and `$meta` in the
projection of a find.

The marks are two extra fields. A sort ignores them, and `shown` removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from operator import getitem
from typing import TYPE_CHECKING, Any, Final

from bson import Int64

from headrace.dispatch.context import CommandContext
from headrace.execution.read_plan import ReadKind, ReadPlan
from headrace.execution.writes.matches import MatchedDocument, matches
from headrace.query.document_metadata import MARK, Readers, mark_of
from headrace.query.stages.reshaping import with_nested
from headrace.store.catalog import Collection
from headrace.store.indexes.index_entries import key_maker
from headrace.values.bson import MISSING, decode, encode_in_order
from headrace.values.keystring.encoding import encode_value

if TYPE_CHECKING:
    from headrace.query.expressions.expression import Evaluate

RECORD: Final = "$recordId"
_KEY: Final = mark_of("indexKey")
_META: Final[dict[str, Callable[[], Evaluate]]] = {
    "indexKey": lambda: lambda env: env.root[_KEY] or MISSING,
    "recordId": lambda: lambda env: env.root[RECORD],
}


def marks_metadata(projection: Any) -> Readers:
    """Return the functions that evaluate a projection's `$meta` from the marks, by the argument of `$meta`."""
    asked = [value.get("$meta") for value in projection.values() if type(value) is dict] if projection else []
    return {name: reader for name, reader in _META.items() if name in asked}


def marked_documents(context: CommandContext, plan: ReadPlan, *, with_record: bool = True) -> Iterator[bytes]:
    """Yield the raw matches of a plan, each with its marks: the record too, or only an index key that there is."""
    finder = plan.finder
    finder.is_backward = plan.kind is not ReadKind.INDEX and plan.backward
    finder.take_order(context.current_view, plan.order)
    for match in matches(context, finder):
        marks: dict[str, Any] = {_KEY: _key(plan, match), RECORD: _record(plan.collection, match)}
        if not with_record:
            marks = {_KEY: marks[_KEY]} if marks[_KEY] else {}
        if finder.marks_scores and finder.text is not None:
            marks[MARK] = finder.text.score(match.document)
        yield encode_in_order(match.document | marks)


def _record(collection: Collection, match: MatchedDocument) -> Int64 | bytes:
    """Return the record's number; for a clustered collection, the key string of `_id`."""
    if collection.clustered:
        return encode_value(match.document["_id"])
    return Int64(int.from_bytes(match.record, "big"))


def _key(plan: ReadPlan, match: MatchedDocument) -> dict[str, Any]:
    """Return the first key of a document within the ranges of the plan; {} without an index."""
    if plan.collection.clustered and plan.kind is not ReadKind.INDEX:
        return {}
    if plan.kind in (ReadKind.IDHACK, ReadKind.IDS):
        return {"_id": match.document["_id"]}
    for branch in [] if plan.choice.access is None else plan.choice.access.branches:
        for key, row in key_maker(branch.index).rows(match.raw).items():
            entry = key if branch.index.unique else key + match.record
            if branch.skip is not None and branch.skip(entry, False) is not None:
                continue
            if any(low <= entry < high for low, high in branch.ranges):
                return dict(zip(branch.index.spec["key"], row))
    return {}


def shown(
    project: Callable[[dict[str, Any]], dict[str, Any]] | None, projection: dict[str, Any], *, with_record: bool,
    with_key: bool,
) -> Callable[[bytes], bytes]:  # fmt: skip
    """Return the function that makes the result from a marked document.

    The result is the key alone, or the projected document, maybe with its record. A result with the key allows no
    projection except `{$meta: "sortKey"}`.
    """
    sort_keys = [tuple(path.split(".")) for path, value in projection.items() if value == {"$meta": "sortKey"}]

    def show(raw: bytes) -> bytes:
        document = decode(raw)
        key, record = document[_KEY], document[RECORD]
        if with_key:
            projected = project(document) if project is not None and sort_keys else {}
            for path in sort_keys:
                key = with_nested(key, path, reduce(getitem, path, projected))
            return encode_in_order(key)
        answer = document if project is None else project(document)
        for mark in (_KEY, RECORD):
            answer.pop(mark, None)
        return encode_in_order({**answer, RECORD: record} if with_record else answer)

    return show
