"""The plan for reading the matches of a filter. It is made once, executed, and shown by `explain`.

IDHACK     the document of one `_id`
IDS        some `_id`s, a range of `_id`s, or all in order
INDEX      one or several indexes; the documents are fetched, unless the keys have all requested fields
NEAR       a geospatial index, from the nearest document to the farthest
COLLECTION every document
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain, compress
from typing import TYPE_CHECKING, Any, Final

from headrace.cursors.collection_scan import Scan
from headrace.cursors.index_scan import IdScan, IndexScan, Reader, SeenRecords, TermKeys, TextScan, score_of
from headrace.dispatch.context import CommandContext
from headrace.errors import CommandError
from headrace.execution.command_memory import memory_of
from headrace.execution.near_documents import near_documents
from headrace.execution.plan import Finder
from headrace.execution.planner.choice import NO_INDEX, Choice
from headrace.execution.planner.collated_bounds import has_order_of
from headrace.execution.planner.id_ranges import IdRange
from headrace.execution.planner.index_access import Access, IndexAccess, OrAccess
from headrace.execution.planner.key_bounds import NUMBER_BYTES, key_values
from headrace.execution.planner.near_access import NearAccess
from headrace.execution.planner.query import Order
from headrace.execution.planner.trial import RESULT_COUNT, CachedPlan
from headrace.query.document_metadata import MARK
from headrace.query.match import Predicate
from headrace.query.match.match_expression import LeafMatchExpression, MatchType
from headrace.store.catalog import Collection, Index
from headrace.store.indexes.index_keys import descends
from headrace.store.view import View, id_bounds
from headrace.timeseries.series import is_buckets
from headrace.values.bson import decode, encode_in_order, find_element

if TYPE_CHECKING:
    from headrace.cursors.index_scan import TermKeys

MERGED_COUNT: Final = 16
"""The first batch of each scan when several scans are merged, in documents."""


class ReadKind(Enum):
    """The source that a plan reads."""

    COLLECTION = "COLLSCAN"
    IDHACK = "IDHACK"
    IDS = "IXSCAN of _id"
    INDEX = "IXSCAN"
    NEAR = "GEO_NEAR"


@dataclass(slots=True)
class ReadPlan:
    """The plan for reading the matches."""

    kind: ReadKind
    collection: Collection
    finder: Finder
    order: Order
    backward: bool = False
    is_sorted: bool = False
    """Whether documents come in the requested order."""
    choice: Choice = NO_INDEX
    covered: tuple[str, ...] | None = None
    """The fields that are read from keys, in key order; None: documents are fetched."""
    id_ranges: list[IdRange] | None = None
    """The ranges of `_id` keys, if these keys cover the query."""
    scans: Sequence[IndexScan | TermKeys] = ()
    """The scans of the branches, while the plan is executed."""
    near: NearAccess | None = None
    """The access for the filter's `$near`, if any."""


def plan_read(
    current: Callable[[], View], collection: Collection, finder: Finder, order: Order, *, backward: bool = False
) -> ReadPlan:
    """Choose the plan. `backward`: read in reverse natural order, as for the hint `{$natural: -1}`."""
    backward = backward or finder.is_natural_backward
    if finder.is_by_id:
        return ReadPlan(ReadKind.IDHACK, collection, finder, order, is_sorted=True)
    if finder.near is not None:
        if order.sort is not None and order.sort.natural:
            raise CommandError(2, "geoNear expression not allowed with $natural sort order")
        return ReadPlan(ReadKind.NEAR, collection, finder, order, near=finder.near_access(current))
    direction = finder.id_direction(current, order)
    if direction is not None:
        return _by_ids(ReadPlan(ReadKind.IDS, collection, finder, order, direction < 0, is_sorted=True), current)
    choice = finder.natural_choice(backward=True) if backward else finder.choice(current, order)
    if choice.access is not None:
        plan = ReadPlan(ReadKind.INDEX, collection, finder, order, choice=choice)
        plan.is_sorted = order.is_asked and (choice.access.is_sorted or _is_by_score(choice.access, finder, order))
        if plan.is_sorted or not order.is_asked:
            plan.covered = _covered(choice.access, order.fields)
        return plan
    if finder.walks_ids:
        return _by_ids(ReadPlan(ReadKind.IDS, collection, finder, order, backward), current)
    if finder.has_id_keys or (finder.id_range is not None and not backward) or finder.is_hinted_by_id:
        return _by_ids(ReadPlan(ReadKind.IDS, collection, finder, order), current)
    return ReadPlan(ReadKind.COLLECTION, collection, finder, order, backward)


def _is_by_score(access: Access, finder: Finder, order: Order) -> bool:
    """Whether a sort by text score is requested and the documents come in this order."""
    is_exact = isinstance(access, OrAccess) and access.is_exact_search and finder.marks_scores
    return is_exact and order.sort is not None and order.sort.paths == ((MARK, True),)


def _by_ids(plan: ReadPlan, current: Callable[[], View]) -> ReadPlan:
    """Return the plan, marked as covered if the `_id` keys are enough."""
    order = plan.order
    if plan.collection.clustered:
        return plan
    if plan.is_sorted or not plan.finder.has_id_keys:  # otherwise `candidates` counts the use
        plan.finder.note_id_use(current())
    if order.fields == ("_id",) and (plan.is_sorted or not order.is_asked):
        plan.id_ranges = plan.finder.id_ranges
        plan.covered = None if plan.id_ranges is None else order.fields
    return plan


def _covered(access: Access, fields: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the fields in key order, if the keys have all of them and the bounds are exact; otherwise None."""
    if fields is None or not isinstance(access, IndexAccess) or not access.is_exact:
        return None
    if any(type(kind) is str for kind in access.index.spec["key"].values()):
        return None
    names = [name for name in access.index.spec["key"] if name in fields]
    return tuple(names) if len(names) == len(fields) and has_order_of(access.index, None) else None


def read(context: CommandContext, plan: ReadPlan) -> Iterator[bytes]:
    """Return the raw matches. A covered plan returns documents of the covered fields only."""
    finder, collection, order = plan.finder, plan.collection, plan.order
    current = context.current_view
    wanted = order.limit if plan.is_sorted or not order.is_asked else None
    if plan.kind is ReadKind.IDHACK:
        match = finder.by_id(context.view)
        return iter(() if match is None else (match[1],))
    if plan.near is not None:
        return (document.raw for document in near_documents(context, finder, wanted))
    if plan.kind is ReadKind.INDEX and finder.text is not None:
        found = found_by_keys(context, plan, wanted)
        if found is not None:
            return found
    if plan.kind is ReadKind.INDEX:
        access = plan.choice.access
        if isinstance(access, IndexAccess) and _has_sure_ranges(plan, access):
            matches = _in_sure_ranges(context, plan, access, wanted)
        else:
            documents = by_index(context, plan, wanted)
            matches = documents if plan.covered is not None else finder.narrowed(lambda: documents)
        return matches if plan.choice.entry is None else _watched(matches, plan, plan.choice.entry)
    if plan.kind is ReadKind.COLLECTION:
        scan = Scan(current, collection, backward=plan.backward)
        scan.keep = finder.keeper()
        return finder.narrowed(lambda: scan) if scan.keep is None else scan
    if plan.id_ranges is not None:
        ranges, reader = plan.id_ranges, _key_reader(collection, collection.indexes[0], ("_id",), 0)
        return IdScan(current, collection, ranges, backward=plan.backward, wanted=wanted, reader=reader)
    if finder.has_id_keys and not plan.is_sorted:
        candidates = [raw for _, _, raw in finder.candidates(current)]
        finder.note_examined(len(candidates))
        if plan.backward:
            candidates.reverse()
        return finder.narrowed(lambda: iter(candidates))
    bounds = finder.id_range or id_bounds(None, None)
    return finder.narrowed(lambda: IdScan(current, collection, [bounds], backward=plan.backward, wanted=wanted))


def by_index(context: CommandContext, plan: ReadPlan, wanted: int | None) -> Iterator[bytes]:
    """Return the documents that may match, each once."""
    access = plan.choice.access
    assert access is not None
    reader = None if plan.covered is None else _key_reader(plan.collection, access.branches[0].index, plan.covered)
    sort = access.sort if isinstance(access, OrAccess) else None
    plan.scans = index_scans(
        context, plan.collection, access, wanted if sort is None else min(wanted or MERGED_COUNT, MERGED_COUNT), reader
    )
    if sort is not None:
        return heapq.merge(*plan.scans, key=lambda raw: sort.key(decode(raw)))
    return plan.scans[0] if len(plan.scans) == 1 else chain.from_iterable(plan.scans)


def _has_sure_ranges(plan: ReadPlan, access: IndexAccess) -> bool:
    """Whether the bounds decide for some or all documents that they match."""
    if access.between is not None or plan.covered is not None or plan.finder.predicate is None:
        return False
    return bool(access.sure) or (access.is_exact and plan.finder.text is None)


def _in_sure_ranges(
    context: CommandContext, plan: ReadPlan, access: IndexAccess, wanted: int | None
) -> Iterator[bytes]:
    """Return the matches. Documents with keys in sure ranges match without a test; the filter tests the others.

    If the access is exact, all its ranges are sure."""
    collection, finder, is_exact = plan.collection, plan.finder, access.is_exact
    ends = list(chain.from_iterable(access.sure))
    assert finder.predicate is not None
    tests = _tests(finder.predicate, context.tick)

    def keep(chunk: list[bytes]) -> list[bytes]:
        """Return the matches of a chunk. Test all if the state of a later batch has documents with arrays."""
        now = context.view.collection(collection.namespace)
        indexes = () if now is None else now.indexes
        if not any(index.number == access.index.number and not index.traits for index in indexes):
            return list(compress(chunk, tests(chunk)))
        if is_exact:
            return chunk
        is_sure = [bisect_right(ends, key) & 1 for key in scan.keys]
        if all(is_sure):
            return chunk
        verdicts = iter(tests([raw for raw, sure in zip(chunk, is_sure) if not sure]))
        return [raw for raw, sure in zip(chunk, is_sure) if sure or next(verdicts)]

    (scan,) = plan.scans = index_scans(context, collection, access, wanted)
    scan.keep = keep
    return scan


def _tests(predicate: Predicate, tick: Callable[[], None]) -> Callable[[list[bytes]], list[bool]]:
    """Return a function that tells which raw documents match. It may pause between documents."""
    test, node = predicate.test, predicate.node
    raw_tests = None
    if isinstance(node, LeafMatchExpression) and node.kind is MatchType.GEO:
        raw_tests = node.argument.raw_tests(node.path)

    def tested(chunk: list[bytes]) -> list[bool]:
        verdicts: list[bool | None] = [None] * len(chunk) if raw_tests is None else raw_tests(chunk)
        made = []
        for raw, verdict in zip(chunk, verdicts):
            if verdict is None:
                tick()
                verdict = test(decode(raw))
            made.append(verdict)
        return made

    return tested


def index_scans(
    context: CommandContext, collection: Collection, access: Access, wanted: int | None,
    reader: Reader | None = None,
) -> list[IndexScan]:  # fmt: skip
    """Return a scan for each branch. Together they return each document once."""
    # A bucket that takes a measurement moves in an index on its first and last time.
    keys_move = is_buckets(collection.name)
    seen = SeenRecords(memory_of(context, {}).add) if access.may_repeat or keys_move else None
    return [
        IndexScan(
            lambda: context.view, collection, branch.index, branch.ranges, backward=branch.backward, seen=seen,
            wanted=wanted, reader=reader, skip=branch.skip, keys_move=keys_move,
        )
        for branch in access.branches
    ]  # fmt: skip


def _key_reader(collection: Collection, index: Index, fields: tuple[str, ...], start: int = NUMBER_BYTES) -> Reader:
    """Return a reader that makes a document of some fields from a key, and returns whether it fetched the document."""
    pattern = index.spec["key"]
    names = list(pattern)
    positions = [(name, names.index(name)) for name in fields]
    descending = [descends(kind) for kind in pattern.values()][: positions[-1][1] + 1]

    def reader(view: View, key: bytes, record: bytes) -> tuple[bytes, bool]:
        values = key_values(key, descending, start)
        if values is not None:
            return encode_in_order({name: values[position] for name, position in positions}), False
        return _with_fields(view.fetch(collection, index, record), fields), True

    return reader


def _with_fields(document: bytes, fields: tuple[str, ...]) -> bytes:
    """Return a document with only these fields. It must not tick, as decoding would: the scan holds an LMDB cursor."""
    elements = []
    for name in fields:
        element = find_element(document, name.encode())
        if element is not None:
            bson_type, start, end = element
            elements.append(bytes((bson_type,)) + name.encode() + b"\0" + document[start:end])
    body = b"".join(elements)
    return (len(body) + 5).to_bytes(4, "little") + body + b"\0"


def _watched(matches: Iterator[bytes], plan: ReadPlan, entry: CachedPlan) -> Iterator[bytes]:
    """Yield the matches. Deactivate the cached plan if it needs many times the works of its trial."""
    count = 0
    for raw in matches:
        count += 1
        if count <= RESULT_COUNT:
            _judge(plan, entry)
        yield raw
    if count < RESULT_COUNT:
        _judge(plan, entry)


def _judge(plan: ReadPlan, entry: CachedPlan) -> None:
    if sum(scan.key_count for scan in plan.scans) > entry.works_max:
        entry.is_active = False


# Text searches.


def found_by_keys(context: CommandContext, plan: ReadPlan, wanted: int | None) -> Iterator[bytes] | None:
    """Return the raw matches, marked with their scores if requested; None if the texts must be tested.

    The keys decide for a search of words alone, if none of its terms is in truncated keys.
    """
    access = plan.choice.access
    if not isinstance(access, OrAccess) or not access.is_exact_search:
        return None
    if not plan.finder.marks_scores:
        return _matching(context.paced(by_index(context, plan, wanted)), plan)
    terms = [
        TermKeys(branch.index, branch.ranges, branch.skip, len(branch.ranges[0][0]) - 1) for branch in access.branches
    ]
    note_bytes = memory_of(context, {}).add
    scan = TextScan(lambda: context.view, plan.collection, terms, note_bytes, wanted)
    plan.scans = list(scan.terms)
    return _marked(context.paced(scan), plan)


def _matching(documents: Iterator[bytes], plan: ReadPlan) -> Iterator[bytes]:
    """Yield the raw documents that match the filter without its text search."""
    rest = plan.finder.besides_search
    for raw in documents:
        if rest is None or rest(decode(raw)):
            yield raw


def _marked(scan: Iterator[Any], plan: ReadPlan) -> Iterator[bytes]:
    """Yield the raw matches, each marked with its score."""
    finder, rest = plan.finder, plan.finder.besides_search
    assert finder.text is not None and finder.predicate is not None
    for item in scan:
        raw, score = score_of(item)
        document = decode(raw)
        if score is None:
            score = finder.text.score(document) if finder.predicate(document) else None
        elif rest is not None and not rest(document):
            continue
        if score is not None:
            yield encode_in_order({**document, MARK: score})
