"""`$group`, and `$count` and `$sortByCount`, which are groups.

Rule: groups leave in the order in which their keys were first seen, or by key if they exceed the memory (MongoDB
promises no order). The `_id` of a group is the first of its equal keys. A field without value is null. A group sees
the values of its documents in order.

Over raw documents it runs by columns: only the fields that its keys and accumulators read are decoded. A batch of
documents becomes a column for each field. `$unwind` before the group repeats the rows of the columns. The rows of a
batch are collected by key. Each accumulator takes the values of all rows of a group at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headrace.errors import CommandError
from headrace.query.accumulators.states import ELEMENT_BYTES, GROWTH, STATE_FACTORIES
from headrace.query.expressions import CompiledExpression, Env, parse_expression
from headrace.query.expressions.expression import Call, Constant, Expression, FieldPathExpression
from headrace.query.expressions.numbers import NUMBERS
from headrace.query.operation_memory import StageMemory, size_of
from headrace.query.stages.reshaping import Unwind
from headrace.query.stages.sort_stage import parse_sort_stage
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.time_limit import limited
from headrace.values.bson import MISSING, Missing, to_string, type_name
from headrace.values.bson.columns import Columns, batches, decoded, values_below
from headrace.values.order import hash_key
from headrace.values.paths import get_path

if TYPE_CHECKING:
    from headrace.query.accumulators import Accumulator

WATCH_COUNT: Final = 64
"""Documents between two checks whether the groups have grown."""

Groups = dict[Any, tuple[Any, list[Any]]]
"""(key, states of the accumulators) of each group, by the key's hash."""


class GrowthWatch:
    """Decides when growing groups are measured again, because a measure looks at every group."""

    __slots__ = ("_count", "_group", "_growth", "_memory")

    def __init__(self, group: Group, memory: StageMemory) -> None:
        self._group = group
        self._memory = memory
        self._count = 0
        self._growth = GROWTH.bytes

    def is_due(self, count: int) -> bool:
        """Whether the groups may have grown much since the last measure. Called after each `count` documents."""
        self._count += count
        least = max(self._memory.step, self._memory.used // 8)
        return GROWTH.bytes - self._growth >= least or self._count * ELEMENT_BYTES >= least

    def measure(self, groups: Iterable[tuple[Any, list[Any]]]) -> int:
        """Return the memory of the groups in bytes. Raises 146 if one state takes too much."""
        size = 0
        for value, states in self._group.context.paced(groups):
            size += self._group.size(value, states)
        self._count, self._growth = 0, GROWTH.bytes
        return size


AccumulatedFields: TypeAlias = tuple[tuple[str, "Accumulator"], ...]

GROUP_BYTES: Final = 256
STATE_BYTES: Final = 256
"""About the bytes that a group takes, and that each of its accumulator states takes."""


@dataclass(frozen=True, slots=True)
class Group(Stage):
    """Groups documents with equal keys. `key` returns a group's `_id` (never MISSING)."""

    name: str
    spec: Any
    key: Callable[[Document], Any]
    fields: AccumulatedFields
    context: PipelineContext

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """One document for each group. Reads all input first. Raises 292, and 146 if an accumulator holds too much."""
        with self.context.memory.stage("$group") as memory:
            groups: Groups = {}
            left = documents if self._gather(documents, groups, memory) else None
            yield from self._results(groups, left, memory)

    def apply_columns(self, columns: GroupColumns, raws: Iterator[bytes]) -> Iterator[Document]:
        """As `apply`, for encoded documents. Only some of their fields are decoded."""
        with self.context.memory.stage("$group") as memory:
            groups: Groups = {}
            left = columns.gather(raws, groups, memory)
            yield from self._results(groups, None if left is None else columns.documents(left), memory)

    def _results(self, groups: Groups, left: Iterator[Document] | None, memory: StageMemory) -> Iterator[Document]:
        """The documents of the groups. `left`: documents that are still to be grouped, with the help of the disk."""
        if left is not None:
            from headrace.query.stages.group_spill import spilled_results  # it imports pickle

            yield from spilled_results(self, groups, left, memory)
            return
        for value, states in groups.values():
            yield self.result(value, states)

    def _gather(self, documents: Iterator[Document], groups: Groups, memory: StageMemory) -> bool:
        """Group all documents. Return True, with some documents left, as soon as the groups exceed the memory."""
        key, bound, collation = self.key, self.context.bound, self.context.collation
        evaluates = [accumulator.evaluate for _, accumulator in self.fields]

        def add_to(group: tuple[Any, list[Any]], env: Env) -> None:
            for evaluate, state in zip(evaluates, group[1]):
                state.add(evaluate(env))

        add_limited = limited(add_to)
        watch = GrowthWatch(self, memory) if self.grows else None
        size, step, unwatched = 0, memory.step, 0
        for document in documents:
            value = key(document)
            hashed = hash_key(value, collation)
            group = groups.get(hashed)
            env = Env(document, bound)
            if group is None:
                group = groups[hashed] = (value, new_states(self.fields, value, bound))
                add_limited(group, env)
                size += self.size(*group)
            else:
                add_limited(group, env)
                if watch is None:
                    continue
                unwatched += 1
                if unwatched < WATCH_COUNT:
                    continue
                unwatched = 0
                if not watch.is_due(WATCH_COUNT):
                    continue
                size = watch.measure(groups.values()) - memory.used
            if size >= step:
                memory.add(size)
                size = 0
                if memory.is_over:
                    return True
        return False

    def size(self, value: Any, states: list[Any]) -> int:
        """About how many bytes of memory a group takes."""
        held: int = sum([state.held() for state in states])
        return GROUP_BYTES + STATE_BYTES * len(states) + size_of(value) + held

    @property
    def grows(self) -> bool:
        """Whether a group may take more memory with each document."""
        return any(accumulator.grows for _, accumulator in self.fields)

    def result(self, value: Any, states: list[Any]) -> Document:
        """The document of a group."""
        return {"_id": value, **results(self.fields, states)}


def new_states(fields: AccumulatedFields, key: Any, bound: Mapping[str, Any]) -> list[Any]:
    """New states of the accumulators for the group with this key."""
    return [accumulator.state_of(key, bound) for _, accumulator in fields]


def results(fields: AccumulatedFields, states: list[Any]) -> Document:
    """The results of the accumulators; null for a result without value."""
    document = {}
    for (name, accumulator), state in zip(fields, states):
        value = accumulator.result(state)
        document[name] = None if value is MISSING else value
    return document


def parse_group(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$group: {_id: expression, field: {accumulator: ...}, ...}}`."""
    if type(spec) is not dict:
        raise CommandError(15947, "a group's fields must be specified in an object")
    key = group_key(spec["_id"], context) if "_id" in spec else None
    fields = parse_fields({field: value for field, value in spec.items() if field != "_id"}, context)
    if key is None:
        raise CommandError(15955, "a group specification must include an _id")
    return (Group(name, spec, key, fields, context),)


def parse_fields(spec: Document, context: PipelineContext) -> AccumulatedFields:
    """The accumulators of a group's fields, by name."""
    return tuple((field, _parse_field(field, value, context)) for field, value in spec.items())


def _parse_field(field: str, value: Any, context: PipelineContext) -> Accumulator:
    from headrace.query.accumulators import parse_accumulator

    if "." in field:
        raise CommandError(40235, f"The field name '{field}' cannot contain '.'")
    if field.startswith("$"):
        raise CommandError(40236, f"The field name '{field}' cannot be an operator name")
    if type(value) is not dict:
        raise CommandError(40234, f"The field '{field}' must be an accumulator object")
    if len(value) != 1:
        raise CommandError(40238, f"The field '{field}' must specify one accumulator")
    ((operator, argument),) = value.items()
    if type(argument) is list:  # a window function takes it as an expression
        raise CommandError(40237, f"The {operator} accumulator is a unary operator")
    return parse_accumulator(operator, argument, context.parse_context())


def group_key(value: Any, context: PipelineContext) -> Callable[[Document], Any]:
    """Return a function from a document to its group's `_id`.

    Raises 17390 for an object with a number or a boolean. As in MongoDB, an object of several fields omits fields
    without value, but an object of one field holds null instead.
    """
    fields = value if type(value) is dict and value and not next(iter(value)).startswith("$") else {}
    if any(type(item) is bool or type(item) in NUMBERS for item in fields.values()):
        raise CommandError(17390, "$group does not support inclusion-style expressions")
    evaluate, bound = parse_expression(value, context.parse_context()).evaluate, context.bound
    if len(fields) == 1:
        (only,) = fields
        return lambda document: {only: None} if not (key := evaluate(Env(document, bound))) else key

    def key_or_null(document: Document) -> Any:
        key = evaluate(Env(document, bound))
        return None if key is MISSING else key

    return key_or_null


@dataclass(frozen=True, slots=True)
class Count(Stage):
    """Counts documents. `name` is `$group`, to which MongoDB rewrites the stage and which its errors name."""

    spec: str
    name: str = "$group"

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """One document, or none for an empty input."""
        count = sum(1 for _ in documents)
        if count:
            yield {self.spec: count}


def parse_count(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$count: field}`."""
    if type(spec) is not str:
        raise CommandError(40156, "the count field must be a non-empty string")
    if not spec:
        raise CommandError(40157, "the count field must be a non-empty string")
    if spec[0] == "$":
        raise CommandError(40158, "the count field cannot be a $-prefixed path")
    if "\0" in spec:
        raise CommandError(40159, "the count field cannot contain a null byte")
    if "." in spec:
        raise CommandError(40160, "the count field cannot contain '.'")
    if spec == "_id":
        raise CommandError(9039800, "the count field cannot be '_id'")
    return (Count(spec),)


def parse_sort_by_count(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stages of `{$sortByCount: expression}`: a group and a sort."""
    if type(spec) is dict:
        if not next(iter(spec), "").startswith("$"):
            raise CommandError(
                40147,
                "the sortByCount field must be defined as a $-prefixed path or an expression inside an object: "
                f"{to_string(spec)}",
            )
    elif type(spec) is str:
        if not spec.startswith("$"):
            raise CommandError(
                40148,
                "the sortByCount field must be defined as a $-prefixed path or an expression inside an object: "
                f"{to_string(spec)}",
            )
    else:
        raise CommandError(
            40149, f"the sortByCount field must be specified as a string or as an object, got {type_name(spec)}"
        )
    group = parse_group("$group", {"_id": spec, "count": {"$sum": 1}}, context)
    return group + parse_sort_stage("$sort", {"count": -1}, context)


# By columns.


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
