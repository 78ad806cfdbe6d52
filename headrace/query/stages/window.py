"""`$setWindowFields`: fields computed from the documents around each document.

Rule: the documents leave sorted by partition, then by `sortBy`. Every window function sees the documents as they
came in; its fields are added, or replaced in their place, together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace.errors import CommandError
from headrace.query.expansion import encoded_between
from headrace.query.expressions.field_paths import checked_path
from headrace.query.external_sort import Sorter
from headrace.query.operation_memory import StageMemory
from headrace.query.sort import SortKey, parse_sort
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.query.stages.unwind import with_nested, without_nested
from headrace.query.stages.window_functions import WindowFunction, parse_window_function
from headrace.query.stages.window_partition import Partition, sorted_by
from headrace.values.bson import MISSING, decode, type_name
from headrace.values.order import sort_key

_DOCUMENT = "d"
_OPTIONS = frozenset({"output", "partitionBy", "sortBy"})


@dataclass(frozen=True, slots=True)
class SetWindowFields(Stage):
    """Adds the fields of `outputs` to each document of each partition."""

    name: str
    spec: Any
    partition: Callable[[Document], Any] | None
    order: SortKey | None
    sort_path: tuple[str, ...] | None
    outputs: tuple[tuple[tuple[str, ...], WindowFunction], ...]
    context: PipelineContext

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """All documents with their fields, partition after partition; reads everything first.

        Raises 292, and 5414201 where a partition is too large for the memory.
        """
        with self.context.memory.stage(self.name) as memory:
            sorter = Sorter(memory, lambda raw: self._key(decode(raw)[_DOCUMENT]))
            for document in documents:
                sorter.add(self._key(document), encoded_between({_DOCUMENT: document}))
            for members in self._partitions(sorter.sorted(), memory):
                partition = Partition(members, self.sort_path, self.order, self.context)
                columns = [(path, function(partition)) for path, function in self.outputs]
                for index, document in enumerate(members):
                    for path, column in columns:
                        document = _with_value(document, path, column[index])
                    yield document

    def _key(self, document: Document) -> tuple[Any, ...]:
        """The sort key of a document: partition, then `sortBy`."""
        key = () if self.order is None else self.order.key(document)
        return key if self.partition is None else (self._partition_key(document), *key)

    def _partition_key(self, document: Document) -> Any:
        assert self.partition is not None
        value = self.partition(document)
        if type(value) is list:
            raise CommandError(14, "An expression used to partition cannot evaluate to value of type array")
        return sort_key(None if value is MISSING else value, self.context.collation)

    def _partitions(self, records: Iterator[bytes], memory: StageMemory) -> Iterator[list[Document]]:
        """The documents of one partition after the other."""
        members: list[Document] = []
        last: Any = None
        held = 0
        for record in records:
            document = decode(record)[_DOCUMENT]
            key = None if self.partition is None else self._partition_key(document)
            if key != last and members:
                yield members
                memory.add(-held)
                members, held = [], 0
            last = key
            members.append(document)
            held += len(record)
            memory.add(len(record))
            if held > memory.bytes_max:
                raise CommandError(
                    5414201,
                    f"Exceeded memory limit in DocumentSourceSetWindowFields, used {held} bytes but max allowed is "
                    f"{memory.bytes_max}",
                )
        if members:
            yield members


def _with_value(document: Document, path: tuple[str, ...], value: Any) -> Document:
    if value is not MISSING:
        return with_nested(document, path, value)
    return without_nested(document, path) if len(path) == 1 and path[0] in document else document


def parse_set_window_fields(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$setWindowFields: {partitionBy, sortBy, output}}`."""
    if type(spec) is not dict:
        raise CommandError(9, f"the $setWindowFields stage specification must be an object, found {type_name(spec)}")
    for option in spec:
        if option not in _OPTIONS:
            raise CommandError(40415, f"BSON field '$setWindowFields.{option}' is an unknown field.")
    output = spec.get("output")
    if output is None:
        raise CommandError(40414, "BSON field '$setWindowFields.output' is missing but a required field")
    for option, value in (("output", output), ("sortBy", spec.get("sortBy", {}))):
        if type(value) is not dict:
            raise CommandError(14, f"BSON field '$setWindowFields.{option}' is the wrong type '{type_name(value)}'")
    order = parse_sort(spec["sortBy"], context.collation) if spec.get("sortBy") else None
    stage = SetWindowFields(
        name,
        spec,
        partition=context.expression(spec["partitionBy"]) if "partitionBy" in spec else None,
        order=order,
        sort_path=sorted_by(order),
        outputs=tuple(
            (checked_path(path), parse_window_function(value, order, context)) for path, value in output.items()
        ),
        context=context,
    )
    return (stage,)
