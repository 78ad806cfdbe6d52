"""The execution of a filter: by lookups of `_id` if it names some, otherwise through an index or a collection scan.

All commands that match documents use this: find, update, delete, findAndModify, count, distinct, aggregate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bson import Decimal128, Int64, ObjectId
from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.cursors.collection_scan import WITHOUT_KEYS, check_collection, clustered_summary, take_chunk
from headrace.cursors.index_scan import RANGE_COUNT, check_index, first_past, plan_summary, walk_keys, walk_ranges
from headrace.errors import CommandError
from headrace.execution.planner.bounds import Intervals
from headrace.execution.planner.choice import NO_INDEX, Choice, choose, distinct_access, key_count
from headrace.execution.planner.eligibility import usable
from headrace.execution.planner.id_ranges import IdRange, id_intervals, id_ranges, span_of, walk_by_index
from headrace.execution.planner.index_access import Access, IndexAccess, IndexRange, range_test
from headrace.execution.planner.near_access import NearAccess, near_access
from headrace.execution.planner.query import ANY_ORDER, Order, Query, Shape, shape_of
from headrace.execution.planner.trial import RESULT_COUNT
from headrace.query.collation import Collation, parse_collation
from headrace.query.document_metadata import MARK
from headrace.query.match import Predicate, parse_filter
from headrace.query.match.index_conditions import TextQuery, has_search
from headrace.query.match.match_expression import And
from headrace.running_command import examined
from headrace.store.catalog import Collection, Index
from headrace.store.indexes.index_entries import key_maker
from headrace.store.indexes.text_keys import TextKeyMaker, is_text
from headrace.store.view import LEFT_OUT, View, id_bounds
from headrace.turns import tick
from headrace.values.bson import decode, encode_in_order, to_string
from headrace.values.keystring.encoding import encode_value
from headrace.values.order import equal

if TYPE_CHECKING:
    from headrace.geo.near import Near
    from headrace.text.search import TextSearch
    from headrace.text.text_spec import TextSpec

_PLAIN: Final = frozenset({ObjectId, int, Int64, float, Decimal128, bool, bytes, DatetimeMS})


def collation_of(collection: Collection | None, given: dict[str, Any] | None) -> Collation | None:
    """Return the collation of an operation: the given one, otherwise the collection's default."""
    if given is None and collection is not None:
        given = collection.options.get("collation")
    return parse_collation(given)


class Finder:
    """A parsed filter over one collection, and its plan for reading the matches."""

    __slots__ = (
        "_choice", "_collation", "_hint", "_id_direction", "_id_key", "_id_keys", "_near", "_spec", "_within",
        "between", "collection", "id_intervals", "id_range", "is_backward", "marks_scores", "near", "predicate",
        "text", "uses_cache", "variables",
    )  # fmt: skip

    def __init__(
        self, collection: Collection, spec: dict[str, Any], collation: Collation | None,
        variables: Mapping[str, Any] | None = None, hint: Any = None, between: IndexRange | None = None,
    ) -> None:  # fmt: skip
        """Parse `spec`, except an equality on `_id` alone. Raise the errors of an invalid filter.

        `between`: a range of the hinted index's keys. Raise 2 for a hint that names no index, 51173 for `between`
        without a hint, 51174 or 51175 for a `between` that does not fit the index.
        """
        self.collection = collection
        """The collection that is read."""
        self._collation = collation
        self.variables = variables
        """The values of `$$` variables in the filter."""
        self._spec = spec
        self._hint = hint = checked_hint(hint)
        self.uses_cache = True
        self.is_backward = hint == {"$natural": -1}
        self._choice: Choice | None = None
        self._id_direction: int | None = None
        check_hint(collection, hint)
        self._id_keys: list[bytes] | None = None
        self.id_range: tuple[bytes, bytes] | None = None
        """The bounds of the `_id`s that can match, for `View.id_keys`; None without bounds."""
        self.id_intervals: Intervals | None = None
        """The intervals of `_id` that can match; None: all."""
        self.predicate: Any = None
        self.near: Near | None = None
        self._near: NearAccess | None = None
        self.text: TextSearch | None = None
        """The text search of the filter, if any."""
        self.marks_scores = False
        """Whether `narrowed` marks documents with their scores."""
        self._id_key: bytes | None = None
        self.between = between
        """The range of keys given by `min` and `max`."""
        self._within: Callable[[bytes], bool] | None = None
        is_free = between is None and (not hint or hinted_index(collection, hint) in (None, collection.indexes[0]))
        if is_free and len(spec) == 1 and "_id" in spec and _is_plain(spec["_id"], collation):
            self._id_key = encode_value(spec["_id"])
            return
        if spec:
            self.predicate = self._parsed(variables)
            if self.text is None and hint not in _NATURAL:
                self._id_keys = _keys_of(self.predicate.equality("_id"), spec.get("_id"), collation)
            if self.text is None and (self.walks_ids or ("_id" in spec and hint not in _NATURAL)):
                self.id_intervals = id_intervals(collection, self.predicate.node, collation)
                self.id_range = None if self.id_intervals is None else span_of(self.id_intervals)
        if between is not None:
            self._bound(between)
        self._id_direction = 1 if self.is_hinted_by_id else None

    def _parsed(self, variables: Mapping[str, Any] | None) -> Predicate:
        """Parse the filter, and set `near` and `text`. Raise 2 for a text search with a hint or a near."""
        nears: list[Near] = []
        text = text_query(self.collection)
        predicate = parse_filter(self._spec, collation=self._collation, variables=variables, nears=nears, text=text)
        self.near = nears[0] if nears else None
        self.text = text.search
        if self.text is not None and self._hint:
            raise CommandError(2, _NO_HINT if self._hint not in _NATURAL else _NO_NATURAL_ORDER)
        if self.text is not None and nears:
            raise CommandError(2, "text and geoNear not allowed in same query")
        return predicate

    def _bound(self, between: IndexRange) -> None:
        """Set the range of keys from `min` and `max`; for the `_id` index, as a range of ids."""
        index = hinted_index(self.collection, self._hint)
        if index is None:
            raise CommandError(
                51173,
                "error processing query: planner returned error :: caused by :: "
                "When using min()/max() a hint of which index to use must be provided",
            )
        self._within = range_test(index, between, self._collation)
        if index.has_entries:
            self._id_keys = self.id_range = None
            return
        least, limit = between.least.get("_id", _ABSENT), between.limit.get("_id", _ABSENT)
        low, high = id_bounds(None if least is _ABSENT else encode_value(least), None)
        if limit is not _ABSENT:
            high = id_bounds(None, encode_value(limit))[1]
        self._id_keys, self.id_range = None, (low, high)

    def by_id(self, view: View) -> tuple[bytes, bytes] | None:
        """Return (record, raw document) for a filter that is a plain `_id`; None without a match."""
        assert self._id_key is not None
        view.store.uses.ids[self.collection.number] += 1
        return view.by_id(self.collection, self._id_key)

    @property
    def is_by_id(self) -> bool:
        """Whether the filter is only an equality on a plain `_id`."""
        return self._id_key is not None

    @property
    def besides_search(self) -> Callable[[dict[str, Any]], bool] | None:
        """The test of the filter without its text search; None if the filter is only a search."""
        node = self.predicate.node
        if not isinstance(node, And):
            return None
        return Predicate(And(tuple(item for item in node.children if not has_search(item))).optimized()).test

    def near_access(self, current: Callable[[], View]) -> NearAccess:
        """Return the access for the filter's `$near`. Raise 291 without a suitable index, 2 for the hint `$natural`."""
        assert self.near is not None
        if self._near is None:
            if self._hint in _NATURAL:
                raise CommandError(2, "geoNear expression not allowed with $natural hint")
            hint = hinted_index(self.collection, self._hint)
            hinted = bool(self._hint)
            self._near = near_access(
                self.collection, self.near, self.predicate.node, self._collation, hint, hinted=hinted
            )
            current().store.uses.indexes[self._near.index.number] += 1
        return self._near

    @property
    def scan_fields(self) -> dict[str, Any] | None:
        """The fields `filter` and `collation`, if the plan is a scan of all documents in natural order; otherwise
        None."""
        ways = (self.near, self.text, None if self._choice is None else self._choice.access, self.between)
        if self.predicate is None or self._goes_by_id or self.walks_ids or any(way is not None for way in ways):
            return None
        return {"filter": self._spec, "collation": None if self._collation is None else dict(self._collation.document)}

    @property
    def is_hinted(self) -> bool:
        """Whether the client has given a hint."""
        return bool(self._hint)

    @property
    def is_hinted_by_id(self) -> bool:
        """Whether a hint names the index on `_id` and the filter has no bounds for it, so that all keys are read."""
        if not self._hint or self._id_keys is not None or self.id_range is not None or self.near is not None:
            return False
        index = self.collection.indexes[0]
        is_plain = not index.has_entries and not self.collection.clustered
        return is_plain and hinted_index(self.collection, self._hint) is index

    @property
    def walks_ids(self) -> bool:
        """Whether natural order is the order of `_id` keys, as in a clustered collection without a collation."""
        return self.collection.clustered and not self.collection.indexes[0].has_entries

    @property
    def is_natural_backward(self) -> bool:
        """Whether the hint is `{$natural: -1}`."""
        return bool(self._hint == {"$natural": -1})

    @property
    def has_id_keys(self) -> bool:
        """Whether only certain `_id` values can match, so that no scan of the collection is needed."""
        return self._id_keys is not None

    def choice(self, current: Callable[[], View], order: Order = ANY_ORDER) -> Choice:
        """Return the choice of index access, made at the first call, which may pause."""
        if self._choice is None:
            self._choice = self._chosen(current, order)
            store = current().store
            store.uses.indexes.update(index.number for index in self._choice.indexes)
            if self._choice.access is None and not self._goes_by_id:
                store.uses.scans[self.collection.number] += 1
        return self._choice

    def natural_choice(self, *, backward: bool = False) -> Choice:
        """Return the choice for reading in natural order."""
        collection = self.collection
        if self._id_key is not None or not collection.clustered or self.walks_ids:
            return NO_INDEX
        return Choice(walk_by_index(collection, backward=backward))

    def _chosen(self, current: Callable[[], View], order: Order) -> Choice:
        choice = self._chosen_index(current, order)
        if choice.access is not None or self._id_keys is not None:
            return choice
        return self.natural_choice(backward=self.is_natural_backward)

    def _chosen_index(self, current: Callable[[], View], order: Order) -> Choice:
        collection = self.collection
        if self._id_key is not None or not collection.maintained:
            return NO_INDEX
        hint = hinted_index(collection, self._hint)
        if (self._hint and (hint is None or hint.is_of_id)) or (hint is None and self._id_keys is not None):
            return NO_INDEX
        node = None if self.predicate is None else self.predicate.node
        test = None if self.predicate is None else self.predicate.test
        query = Query(
            node, test, self._collation, self._spec, self.between, self.uses_cache, has_text=self.text is not None
        )
        choice = choose(current, collection, query, order, hint)
        if hint is None and self.id_range is not None and not _is_narrow(current, choice.access):
            return NO_INDEX
        return choice

    def shape(self, order: Order) -> Shape:
        """Return the query shape, which queries share if they differ only in values."""
        return shape_of(None if self.predicate is None else self.predicate.node, order.sort, self._collation)

    def distinct(self, view: View, path: str, order: Order = ANY_ORDER, *, with_missing: bool) -> IndexAccess | None:
        """Return the index access that skips from each value of a path to the next; None without a suitable index.

        `with_missing`: a document without a value counts as null."""
        hint = hinted_index(self.collection, self._hint)
        if self._id_key is not None or (self._hint and hint is None) or self.text is not None:
            return None
        node = None if self.predicate is None else self.predicate.node
        access = distinct_access(
            self.collection, node, self._collation, path, order.sort, hint, with_missing=with_missing
        )
        if access is not None:
            view.store.uses.indexes[access.index.number] += 1
        return access

    def candidates(
        self, current: Callable[[], View], after: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield (position, record, raw document) of documents that may match, after the position `after` if given.

        The order is natural order for a collection scan, otherwise the order of `_id` or of an index. If `may_repeat`,
        a document may come more than once. A key outside the bounds yields `LEFT_OUT` and no document. This may pause
        before any document, so a document read earlier may have changed since.
        """
        access = self.choice(current).access
        if access is not None:
            yield from self._by_index(current, access, after)
            return
        view = current()
        check_collection(view, self.collection)
        if after is None and self._goes_by_id:
            self.note_id_use(view)
        if self._id_key is not None or self._id_keys is not None:
            keys = [self._id_key] if self._id_keys is None else self._id_keys
            for key in keys:
                if after is None or key > after:  # type: ignore[operator]
                    match = view.by_id(self.collection, key)  # type: ignore[arg-type]
                    if match is not None:
                        yield key, *match  # type: ignore[misc]
        elif self.id_range is not None or self._id_direction is not None or self.walks_ids:
            yield from self._by_ids(view, after)
        else:
            for record, raw in view.scan(self.collection, after=after, backward=self.is_backward):
                yield record, LEFT_OUT if raw is LEFT_OUT else record, raw

    def chunk(
        self, current: Callable[[], View], after: bytes | None, count_max: int, bytes_max: int
    ) -> list[tuple[bytes, bytes, bytes]]:  # fmt: skip
        """Return the first items of `candidates`: at least one, and at most this number of documents and bytes.

        This may pause before it reads."""
        if self.choice(current).access is not None or self._goes_by_id or self.walks_ids:
            return take_chunk(self.candidates(current, after), count_max, bytes_max)
        view = current()
        check_collection(view, self.collection)
        chunk = view.scan_chunk(
            self.collection, after=after, backward=self.is_backward, count_max=count_max, bytes_max=bytes_max
        )
        return [(record, LEFT_OUT if raw is LEFT_OUT else record, raw) for record, raw in chunk]

    @property
    def _goes_by_id(self) -> bool:
        ways = (self._id_key, self._id_keys, self.id_range, self._id_direction)
        return any(way is not None for way in ways)

    def note_id_use(self, view: View) -> None:
        """Count a use of the index on `_id`."""
        view.store.uses.ids[self.collection.number] += 1

    def _by_ids(self, view: View, after: bytes | None) -> Iterator[tuple[bytes, bytes, bytes]]:
        bounds, index = self.id_range or id_bounds(None, None), self.collection.indexes[0]
        backward = self.is_backward if self._id_direction is None else self._id_direction == -1
        walk = partial(view.id_keys, self.collection)
        for key, record in walk_ranges(walk, [bounds], backward=backward, after=after):
            yield key, record, b"" if record is LEFT_OUT else view.fetch(self.collection, index, record)

    def id_direction(self, current: Callable[[], View], order: Order) -> int | None:
        """Return 1 or -1 if a scan of the `_id` index in this direction gives the requested order; otherwise None.

        Also None if another index finds few enough documents that sorting them is faster."""
        direction = self._id_order(order)
        if direction is None or self.predicate is None:
            return direction
        access = self.choice(current, order).access
        if access is None or not access.branches[0].bounded_count:
            return direction
        return None if access.is_sorted or key_count(current, access, _SORTED_COUNT) < _SORTED_COUNT else direction

    def _id_order(self, order: Order) -> int | None:
        sort, collection = order.sort, self.collection
        if sort is None or len(sort.paths) != 1 or sort.paths[0][0] != "_id":
            return None
        if self._hint and hinted_index(collection, self._hint) is not collection.indexes[0]:
            return None
        if self._id_keys is not None or self._collation is not None or collection.long_ids or self.text is not None:
            return None
        return -1 if sort.paths[0][1] else 1

    def take_order(self, current: Callable[[], View], order: Order) -> bool:
        """Plan for an order, before `candidates` is called. Return whether the candidates will come in this order."""
        if self._id_key is not None:
            return True
        if self.near is not None:
            return False
        self._id_direction = self.id_direction(current, order)
        if self._id_direction is not None:
            self._choice = NO_INDEX
            return True
        self._id_direction = 1 if self.is_hinted_by_id else None
        access = self.choice(current, order).access
        return isinstance(access, IndexAccess) and access.is_sorted

    def note_examined(self, count: int, key_count: int | None = None) -> None:
        """Count `count` examined candidates for the log, and `key_count` keys if these differ."""
        access = None if self._choice is None else self._choice.access
        if access is not None:
            summary = ", ".join(plan_summary("IXSCAN", branch.index) for branch in access.branches)
        elif self._id_key is not None:
            summary = "IDHACK"
        elif self.walks_ids:
            summary = clustered_summary(is_bounded=self._id_keys is not None or self.id_range is not None)
        elif self._id_keys is not None or self.id_range is not None or self._id_direction is not None:
            summary = "IXSCAN { _id: 1 }"
        else:
            summary = "COLLSCAN"
        examined(summary, count, 0 if summary in WITHOUT_KEYS else count if key_count is None else key_count)

    @property
    def may_repeat(self) -> bool:
        """Whether `candidates` may yield a document more than once, also because its keys have changed meanwhile."""
        return self._choice is not None and self._choice.access is not None

    def _by_index(
        self, current: Callable[[], View], access: Access, after: bytes | None
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield candidates through an index. A position is the number of the branch, in four bytes, and the key."""
        collection, branches = self.collection, access.branches
        at, last = (0, None) if after is None else (int.from_bytes(after[:4], "big"), after[4:])
        for number in range(at, len(branches)):
            branch = branches[number]
            index, ranges, backward, prefix = branch.index, branch.ranges, branch.backward, number.to_bytes(4, "big")
            start = 0 if last is None else first_past(ranges, last, backward=backward)
            for begin in range(start, len(ranges), RANGE_COUNT):
                view = current()
                check_index(view, collection, index)
                piece = ranges[begin : begin + RANGE_COUNT]
                for key, record in walk_keys(view, index, piece, backward=backward, after=last, skip=branch.skip):
                    document = b"" if record is LEFT_OUT else view.fetch(collection, index, record)
                    yield prefix + key, record, document
            last = None

    @property
    def id_ranges(self) -> list[IdRange] | None:
        """The ranges of `_id` keys that express the whole filter; None if there are none or another index is hinted."""
        if self._id_key is not None or self.between is not None:
            return None
        if self._hint and ((hint := hinted_index(self.collection, self._hint)) is None or not hint.is_of_id):
            return None
        node = None if self.predicate is None else self.predicate.node
        return id_ranges(self.collection, node, self._collation)

    def positional(self, document: dict[str, Any]) -> str | None:
        """Return the array index that `$` stands for in an update of this match."""
        return None if self.predicate is None else self.predicate.matched_index(document)

    def keeper(self) -> Callable[[list[bytes]], list[bytes]] | None:
        """Return a function that selects the matches from many raw documents by columns; None if the filter needs more
        than column tests."""
        if self.predicate is None or self._within is not None or self.text is not None:
            return None
        from headrace.cursors.column_tests import columns_test  # not needed at start or for lookups

        return columns_test(self.predicate.node)

    def narrowed(self, documents: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
        """Return the raw documents of `documents` that match. Without a filter nothing is decoded."""
        predicate, within = self.predicate, self._within
        if predicate is None and within is None:
            return documents()
        if self.marks_scores and self.text is not None and predicate is not None:
            return _with_scores(documents(), predicate, self.text)
        return _matching(documents(), predicate, within)


def _matching(
    documents: Iterator[bytes], predicate: Predicate | None, within: Callable[[bytes], bool] | None
) -> Iterator[bytes]:  # fmt: skip
    """Yield raw documents that match and whose keys are within a range."""
    for raw in documents:
        tick()
        if (predicate is None or predicate(decode(raw))) and (within is None or within(raw)):
            yield raw


def _with_scores(
    documents: Iterator[bytes], predicate: Callable[[dict[str, Any]], bool], text: TextSearch
) -> Iterator[bytes]:
    """Yield raw documents that match, each with its text score as a mark, if it has a score."""
    for raw in documents:
        tick()
        document = decode(raw)
        if predicate(document):
            score = text.score(document)
            yield raw if score is None else encode_in_order({**document, MARK: score})


_NO_HINT: Final = "text and hint not allowed in same query"
_NO_NATURAL_ORDER: Final = "text expression not allowed with $natural sort order"
_ABSENT: Final = object()
_NATURAL: Final = ({"$natural": 1}, {"$natural": -1})
"""Hints for a scan of the collection, with the numbers that `checked_hint` returns."""
_SORTED_COUNT: Final = 1000
"""If an index has fewer matching keys, its documents are fetched and sorted; otherwise all are read in `_id` order."""


def _is_plain(value: Any, collation: Collation | None) -> bool:
    """Whether `{_id: value}` matches exactly this value, which the `_id` index can look up."""
    kind = type(value)
    if kind is dict:
        return collation is None and not any(name.startswith("$") for name in value)
    return kind in _PLAIN or (kind is str and collation is None)


def _keys_of(equal: Any, condition: Any, collation: Collation | None) -> list[bytes] | None:
    """Return the keys of the `_id` values that the filter allows, if it lists them; otherwise None."""
    if _is_plain(equal, collation):
        return [encode_value(equal)]
    if (
        type(condition) is dict
        and type(condition.get("$in")) is list
        and len(condition["$in"]) <= limits.ID_LOOKUP_COUNT_MAX
    ):
        values = condition["$in"]
        if all(_is_plain(value, collation) for value in values):
            return sorted({encode_value(value) for value in values})
    return None


def _is_narrow(current: Callable[[], View], access: Access | None) -> bool:
    """Whether an index finds fewer documents than end a trial, so that a range of `_id`s is no better."""
    return isinstance(access, IndexAccess) and key_count(current, access, RESULT_COUNT) < RESULT_COUNT


def hinted_index(collection: Collection | None, hint: Any) -> Index | None:
    """Return the index that a hint names; None if it names no visible index."""
    for index in [] if collection is None else collection.indexes:
        if hint == index.name or (type(hint) is dict and equal(hint, index.spec["key"])):
            return None if index.spec.get("hidden") else index
    return None


def checked_hint(hint: Any) -> Any:
    """Return a hint, with an `int` for the direction of `$natural`. Raise 2 if that is not 1 or -1."""
    if type(hint) is not dict or "$natural" not in hint:
        return hint
    if len(hint) > 1:
        raise CommandError(2, f"Cannot include '$natural' in compound hint: {to_string(hint)}")
    for direction in (1, -1):
        if equal(hint["$natural"], direction):
            return {"$natural": direction}
    raise CommandError(2, "$natural hint cannot be set to a value other than -1 or 1.")


def check_hint(collection: Collection | None, hint: Any) -> None:
    """Raise 2, as MongoDB's planner does, for a hint that names no usable index. The hint of a view or time series is
    checked on the collection below it."""
    if hint in (None, {}):
        return
    hint = checked_hint(hint)
    if collection is None or hint in _NATURAL or collection.is_time_series or collection.is_view:
        return
    index = hinted_index(collection, hint)
    if index is not None and usable([index]):
        return
    raise CommandError(
        2,
        f"error processing query: ns={collection.namespace} planner returned error :: caused by :: "
        "hint provided does not correspond to an existing index",
    )


def text_query(collection: Collection | None, namespace: str = "") -> TextQuery:
    """Return the parser of text searches in a collection. `namespace`: the name of a missing collection, for errors."""
    return TextQuery(lambda: _spec_of(collection, namespace))


def _spec_of(collection: Collection | None, namespace: str) -> TextSpec:
    if collection is None:
        raise CommandError(27, f"text index required for $text query (no such collection '{namespace}')")
    for index in collection.indexes:
        if index.has_entries and is_text(index.spec["key"]):
            maker = key_maker(index)
            assert isinstance(maker, TextKeyMaker)
            return maker.text_spec
    raise CommandError(27, "text index required for $text query")
