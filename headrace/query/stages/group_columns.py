"""`$group` over raw documents, by columns: only the fields that its keys and accumulators read are decoded.

A batch of documents becomes a column for each field. `$unwind` before the group repeats the rows of the columns. The
rows of a batch are collected by key. Each accumulator takes the values of all rows of a group at once.

Rule: a group sees the values of its documents in order, as if they came one by one. Groups are in the order in which
their keys were first seen.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headrace.query.accumulators.states import STATE_FACTORIES
from headrace.query.expressions import CompiledExpression, Env, parse_expression
from headrace.query.expressions.expression import Call, Constant, Expression, FieldPathExpression
from headrace.query.operation_memory import StageMemory
from headrace.query.stages.group import WATCH_COUNT, Groups, GrowthWatch, new_states
from headrace.query.stages.reshaping import Unwind
from headrace.time_limit import limited
from headrace.values.bson import MISSING, Missing
from headrace.values.bson.columns import Columns, batches, decoded, values_below
from headrace.values.order import hash_key
from headrace.values.paths import get_path

if TYPE_CHECKING:
    from headrace.query.stages.group import Group
    from headrace.query.stages.stage import Document

Column: TypeAlias = Sequence[Any]

_OWN_HASHES: Final = frozenset({int, str})
_KNOWN_COUNT_MAX: Final = 10_000
_KNOWN_LENGTH_MAX: Final = 100
"""The most keys that are known, and the longest string of which they may be made."""


class RowBatch:
    """The rows of a batch: columns by name, and documents of these fields, for expressions."""

    __slots__ = ("_documents", "columns", "count")

    def __init__(self, columns: Mapping[str, Column], count: int) -> None:
        self.columns = columns
        self.count = count
        self._documents: list[Document] | None = None

    @property
    def documents(self) -> list[Document]:
        """A document of the batch's fields for each row."""
        if self._documents is None:
            names = list(self.columns)
            rows = zip(*self.columns.values()) if names else iter([()] * self.count)
            self._documents = [{name: value for name, value in zip(names, row) if value is not MISSING} for row in rows]
        return self._documents

    def unwound(self, name: str, *, keeps_empty: bool) -> RowBatch:
        """The rows after an `$unwind` of a column: one for each element of its arrays."""
        items: list[Any] = []
        origins: list[int] = []
        for number, value in enumerate(self.columns[name]):
            is_array = type(value) is list
            if is_array and value:
                items += value
                origins += [number] * len(value)
            elif not is_array and value is not MISSING and value is not None:
                items.append(value)
                origins.append(number)
            elif keeps_empty:
                items.append(MISSING if is_array else value)
                origins.append(number)
        columns: dict[str, Column] = {
            other: [column[number] for number in origins] for other, column in self.columns.items() if other != name
        }
        return RowBatch({**columns, name: items}, len(items))


Reader: TypeAlias = Callable[[RowBatch], Column]
Keys: TypeAlias = tuple[Column, Sequence[Hashable]]
"""The key of each row, and its hash."""


class KnownKeys:
    """Reads keys, but those of rows with the same values only once. The keys depend on nothing but the values."""

    __slots__ = ("_key", "_known", "_names")

    def __init__(self, names: Iterable[str], key: Callable[[Sequence[Document]], Keys]) -> None:
        self._names = tuple(names)
        self._key = key
        self._known: dict[tuple[Any, ...], tuple[Any, Hashable]] = {}

    def __call__(self, rows: RowBatch) -> Keys:
        """Return the keys of a batch."""
        columns = [rows.columns[name] for name in self._names]
        if not all(map(_are_short, columns)):
            return self._key(rows.documents)
        if len(self._known) > _KNOWN_COUNT_MAX:
            self._known.clear()
        known, values = self._known, list(zip(*columns))
        if new := {row for row in values if row not in known}:
            documents = [{name: value for name, value in zip(self._names, row) if value is not MISSING} for row in new]
            known.update(zip(new, zip(*self._key(documents))))
        found = [known[row] for row in values]
        return [key for key, _ in found], [hashed for _, hashed in found]


def _are_short(column: Column) -> bool:
    """Whether equal values of a column are the same in every respect (not 1 and 1.0), and take little memory."""
    return _OWN_HASHES.issuperset(kinds := set(map(type, column)) - {Missing}) and (
        str not in kinds or max(len(value) for value in column if type(value) is str) <= _KNOWN_LENGTH_MAX
    )


class GroupColumns:
    """Gathers raw documents into groups."""

    __slots__ = ("_group", "_inputs", "_keys", "_names", "_unwind")

    def __init__(
        self,
        group: Group,
        names: Sequence[str],
        keys: Callable[[RowBatch], Keys],
        inputs: Sequence[Reader],
        unwind: Unwind | None,
    ) -> None:
        self._group = group
        self._names = names
        self._keys = keys
        self._inputs = inputs
        self._unwind = unwind

    def documents(self, raws: Iterator[bytes]) -> Iterator[Document]:
        """The documents that the group would take if it did not read columns."""
        documents = decoded(raws)
        return documents if self._unwind is None else self._unwind.apply(documents)

    def gather(self, documents: Iterator[bytes], groups: Groups, memory: StageMemory) -> Iterator[bytes] | None:
        """Group all documents. Return those that are left as soon as the groups exceed the memory, otherwise None."""
        group, columns = self._group, Columns(self._names)
        watch = GrowthWatch(group, memory) if group.grows else None
        size = unwatched = 0
        made = batches(documents)
        for batch in made:
            group.context.tick()
            rows = RowBatch(columns.values(batch), len(batch))
            if self._unwind is not None:
                rows = rows.unwound(self._unwind.path[0], keeps_empty=self._unwind.keeps_empty)
            size += self._add(rows, groups)
            unwatched += rows.count
            if watch is not None and unwatched >= WATCH_COUNT and watch.is_due(unwatched // WATCH_COUNT * WATCH_COUNT):
                size = watch.measure(groups.values()) - memory.used
            unwatched %= WATCH_COUNT
            if size >= memory.step:
                memory.add(size)
                size = 0
                if memory.is_over:
                    return chain.from_iterable(made)  # `documents` has no longer those of batches made already
        return None

    def _add(self, rows: RowBatch, groups: Groups) -> int:
        """Add rows to their groups. Return about how many bytes the new groups take."""
        group, size = self._group, 0
        keys, hashes = self._keys(rows)
        inputs = [read(rows) for read in self._inputs]
        for hashed, numbers in _together(hashes).items():
            entry = groups.get(hashed)
            is_new = entry is None
            if entry is None:
                key = keys[numbers[0]]
                entry = groups[hashed] = (key, new_states(group.fields, key, group.context.bound))
            for state, column in zip(entry[1], inputs):
                state.add_all([column[number] for number in numbers])
            if is_new:
                size += group.size(*entry)
        return size


def _with_hashes(keys: Column, collation: Any) -> Keys:
    if collation is None and _OWN_HASHES.issuperset(map(type, keys)):
        return keys, keys
    return keys, list(map(limited(partial(hash_key, collation=collation)), keys))


def _together(hashes: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """The numbers of the rows with each hash."""
    found: dict[Hashable, list[int]] = {}
    for number, hashed in enumerate(hashes):
        if hashed in found:
            found[hashed].append(number)
        else:
            found[hashed] = [number]
    return found


def group_columns(group: Group, unwind: Unwind | None = None) -> GroupColumns | None:
    """A group, or an unwind and a group, by columns. None if they read the complete document."""
    if unwind is not None and (len(unwind.path) > 1 or unwind.index_path is not None):
        return None
    if "_id" not in group.spec:
        return None  # a `$bucket`: its key is not an expression
    scope = group.context.parse_context()
    key = parse_expression(group.spec["_id"], scope)
    inputs: list[CompiledExpression] = []
    for name, accumulated in group.spec.items():
        if name != "_id":
            ((operator, argument),) = accumulated.items()
            if operator not in STATE_FACTORIES:
                return None
            inputs.append(parse_expression(argument, scope))
    names: set[str] = set() if unwind is None else {unwind.path[0]}
    for expression in (key, *inputs):
        fields = expression.fields()
        if fields is None:
            return None
        names |= fields
    return GroupColumns(
        group, sorted(names), _key_reader(key, group), list(map(_reader, inputs, [group] * len(inputs))), unwind
    )


def _key_reader(expression: CompiledExpression, group: Group) -> Callable[[RowBatch], Keys]:
    node, collation = expression.node, group.context.collation
    if isinstance(node, FieldPathExpression):
        read = _reader(expression, group)
        return lambda rows: _with_hashes([None if value is MISSING else value for value in read(rows)], collation)
    key = group.key
    if isinstance(node, Constant):
        constant = key({})
        return lambda rows: _with_hashes([constant] * rows.count, collation)

    def keys_of(documents: Sequence[Document]) -> Keys:
        return _with_hashes(_each(group, key, documents), collation)

    if (names := expression.fields()) and _is_pure(node):
        return KnownKeys(names, keys_of)
    return lambda rows: keys_of(rows.documents)


def _is_pure(node: Expression | None) -> bool:
    """Whether the value depends on nothing but the document: not if there is a `$rand`."""
    return not isinstance(node, Call) or (node.operator.folds and all(map(_is_pure, node.operands)))


def _reader(expression: CompiledExpression, group: Group) -> Reader:
    node = expression.node
    if isinstance(node, FieldPathExpression):
        name, *path = node.steps
        return lambda rows: _at_path(group, rows.columns[name], path)
    if isinstance(node, Constant):
        constant = node.value
        return lambda rows: [constant] * rows.count
    evaluate, bound = expression.evaluate, group.context.bound
    return lambda rows: _each(group, lambda document: evaluate(Env(document, bound)), rows.documents)


def _at_path(group: Group, column: Column, path: Sequence[str]) -> Column:
    """The value of a path of expressions in each value of a column."""
    below = values_below(column, path)
    return [get_path(value, path) for value in group.context.paced(column)] if below is None else below


def _each(group: Group, function: Callable[[Document], Any], documents: Sequence[Document]) -> list[Any]:
    """The results of a function that may take long, with a time limit."""
    return [function(document) for document in group.context.paced(documents)]
