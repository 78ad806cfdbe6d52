"""`$group`, and `$count` and `$sortByCount`, which are groups.

Rule: groups leave in the order in which their keys were first seen, or by key if they exceed the memory (MongoDB
promises no order). The `_id` of a group is the first of its equal keys. A field without value is null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headrace.errors import CommandError
from headrace.query.accumulators.states import ELEMENT_BYTES, GROWTH
from headrace.query.expressions import Env, parse_expression
from headrace.query.expressions.numbers import NUMBERS
from headrace.query.operation_memory import StageMemory, size_of
from headrace.query.stages.sort_stage import parse_sort_stage
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.time_limit import limited
from headrace.values.bson import MISSING, to_string, type_name
from headrace.values.order import hash_key

if TYPE_CHECKING:
    from headrace.query.accumulators import Accumulator
    from headrace.query.stages.group_columns import GroupColumns

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
