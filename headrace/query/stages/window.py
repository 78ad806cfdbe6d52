"""`$setWindowFields`: fields computed from the documents around each document; `$fill`, which is rewritten.

Rule: the documents leave sorted by partition, then by `sortBy`. Every window function sees the original documents. The
new fields are then added, or replaced in their place, all together.

Rule of `$fill`: methods become `$setWindowFields` with `$locf` or `$linearFill`, values an `$addFields` with
`$ifNull`, as in MongoDB. So with values only, it looks at one document at a time, and a change stream allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import CommandError
from headrace.query.expressions import Env, parse_expression
from headrace.query.expressions.expression import checked_path
from headrace.query.operation_memory import StageMemory, encoded_between
from headrace.query.options import ANY, check_object, check_options, check_type
from headrace.query.projection.projection import FieldTree, with_fields
from headrace.query.sort import Sorter, SortKey, parse_sort
from headrace.query.stages.reshaping import parse_add_fields, put_field
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.query.stages.window_functions import Partition, parse_window_function, sorted_by
from headrace.values.bson import MISSING, decode
from headrace.values.order import sort_key

_DOCUMENT = "d"
_TYPES: Final = {"output": "object", "partitionBy": ANY, "sortBy": "object?"}


@dataclass(frozen=True, slots=True)
class SetWindowFields(Stage):
    """Adds the fields of `outputs` to each document of each partition."""

    name: str
    spec: Any
    partition: Callable[[Document], Any] | None
    order: SortKey | None
    sort_path: tuple[str, ...] | None
    outputs: FieldTree
    context: PipelineContext

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """All documents with their fields, one partition after the other. Reads all input first.

        Raises 292, and 5414201 if a partition is too large for the memory.
        """
        with self.context.memory.stage(self.name) as memory:
            sorter = Sorter(memory, lambda raw: self._key(decode(raw)[_DOCUMENT]))
            for document in documents:
                sorter.add(self._key(document), encoded_between({_DOCUMENT: document}))
            for members in self._partitions(sorter.sorted(), memory):
                partition = Partition(members, self.sort_path, self.order, self.context)
                columns = _columns(self.outputs, partition)
                for index, document in enumerate(members):
                    yield with_fields(document, index, columns)

    def _key(self, document: Document) -> tuple[Any, ...]:
        """The sort key of a document: partition, then `sortBy`."""
        key = () if self.order is None else self.order.key(document)
        return key if self.partition is None else (self._partition_key(document), *key)

    def _partition_key(self, document: Document) -> Any:
        assert self.partition is not None
        value = self.partition(document)
        _check_partition(value)
        return sort_key(None if value is MISSING else value, self.context.collation)

    def _partitions(self, records: Iterator[bytes], memory: StageMemory) -> Iterator[list[Document]]:
        """The documents of each partition, one partition after the other."""
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


def _columns(outputs: FieldTree, partition: Partition) -> FieldTree:
    """The tree of functions that return a field's value by the document's index in the partition."""
    return {
        name: _columns(output, partition) if type(output) is dict else output(partition).__getitem__
        for name, output in outputs.items()
    }


def parse_set_window_fields(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$setWindowFields: {partitionBy, sortBy, output}}`."""
    check_object(spec, 9, "the $setWindowFields stage specification must be an object, found")
    check_options("$setWindowFields", spec, _TYPES, ["output"])
    order = _order(spec.get("sortBy"), context)
    outputs: FieldTree = {}
    for path, value in spec["output"].items():
        put_field(outputs, checked_path(path), parse_window_function(value, order, context), path, 6307900)
    stage = SetWindowFields(
        name,
        spec,
        partition=_partition(spec["partitionBy"], context) if "partitionBy" in spec else None,
        order=order,
        sort_path=sorted_by(order),
        outputs=outputs,
        context=context,
    )
    return (stage,)


def _order(spec: dict[str, Any] | None, context: PipelineContext) -> SortKey | None:
    """The order of `sortBy`. An empty `sortBy` is an order in which all documents are equal."""
    return None if spec is None else parse_sort(spec, context.collation, natural=False)


def _partition(value: Any, context: PipelineContext) -> Callable[[Document], Any]:
    """Return a function from a document to the value of its partition. Raises 14 for a constant array."""
    expression = parse_expression(value, context.parse_context())
    if expression.is_constant:
        _check_partition(expression(Env({})))
    return context.expression(value)


def _check_partition(value: Any) -> None:
    if type(value) is list:
        raise CommandError(14, "An expression used to partition cannot evaluate to value of type array")


# $fill.


_METHODS: Final = {"linear": "$linearFill", "locf": "$locf"}
_FILL_TYPES: Final = {"output": "object", "partitionBy": ANY, "partitionByFields": "array", "sortBy": "object"}


def parse_fill(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stages of `{$fill: {partitionBy, partitionByFields, sortBy, output}}`."""
    _check_options(spec)
    windows: Document = {}
    values: Document = {}
    for field, how in spec["output"].items():
        _add_output(field, how, windows, values)
    stages: tuple[Stage, ...] = ()
    if windows:
        stages = parse_set_window_fields("$setWindowFields", _window_spec(spec, windows), context)
    if values:
        stages += parse_add_fields("$addFields", values, context)
    return stages


def _check_options(spec: Any) -> None:
    check_object(spec, 9, "The $fill stage specification must be an object, found")
    check_options("$fill", spec, _FILL_TYPES, ["output"])
    if type(spec.get("partitionBy", "")) not in (dict, str):
        check_type("$fill.partitionBy", spec["partitionBy"], "object")
    if "partitionBy" in spec and "partitionByFields" in spec:
        raise CommandError(6050204, "Maximum one of 'partitionBy' and 'partitionByFields' can be specified in '$fill'")
    for field in spec.get("partitionByFields", ()):
        if type(field) is not str or field.startswith("$"):
            raise CommandError(6050201, "'partitionByFields' in '$fill' must be names of fields without '$'")
    if not spec["output"]:
        raise CommandError(6050203, "Each $fill stage must have at least one output field")


def _add_output(field: str, how: Any, windows: Document, values: Document) -> None:
    if type(how) is not dict or not how.keys() & {"method", "value"}:
        raise CommandError(6050200, f"the output field '{field}' must be an object with one of 'method' and 'value'")
    if len(how) != 1:
        raise CommandError(40415, f"BSON field '{field}' has an unknown field, besides 'method' or 'value'")
    if "value" in how:
        values[field] = {"$ifNull": [f"${field}", how["value"]]}
        return
    function = _METHODS.get(how["method"]) if type(how["method"]) is str else None
    if function is None:
        raise CommandError(6050202, "Method must be either locf or linear")
    windows[field] = {function: f"${field}"}


def _window_spec(spec: Document, windows: Document) -> Document:
    built = {"sortBy": spec.get("sortBy"), "output": windows}
    if "partitionBy" in spec:
        built["partitionBy"] = spec["partitionBy"]
    elif "partitionByFields" in spec:
        built["partitionBy"] = {field: f"${field}" for field in spec["partitionByFields"]}
    return built
