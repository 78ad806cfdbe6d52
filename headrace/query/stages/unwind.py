"""`$unwind`: a document for each element of an array."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bson import Int64

from headrace.errors import CommandError
from headrace.query.expressions.field_paths import checked_path
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.values.bson import MISSING, type_name

_NO_INDEX = None


@dataclass(frozen=True, slots=True)
class Unwind(Stage):
    """Unwinds the array at `path`. `index_path` is the path for the element's index, or None."""

    name: str
    spec: Any
    path: tuple[str, ...]
    keeps_empty: bool
    index_path: tuple[str, ...] | None

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """A document for each element. A document without array is kept or dropped."""
        for document in documents:
            value = nested(document, self.path)
            if type(value) is list and value:
                for index, item in enumerate(value):
                    yield self._with_index(with_nested(document, self.path, item), Int64(index))
            elif value is MISSING or value is None or type(value) is list:
                if self.keeps_empty:
                    unchanged = without_nested(document, self.path) if type(value) is list else document
                    yield self._with_index(unchanged, _NO_INDEX)
            else:
                yield self._with_index(document, _NO_INDEX)

    def _with_index(self, document: Document, index: Int64 | None) -> Document:
        return document if self.index_path is None else with_nested(document, self.index_path, index)


def nested(document: Document, path: tuple[str, ...]) -> Any:
    """The value at `path`, which enters documents only, or MISSING."""
    value: Any = document
    for step in path:
        if type(value) is not dict:
            return MISSING
        value = value.get(step, MISSING)
    return value


def with_nested(document: Document, path: tuple[str, ...], value: Any) -> Document:
    """A copy of the document with `value` at `path`. A document replaces any other value on the way."""
    if len(path) == 1:
        return {**document, path[0]: value}
    inner = document.get(path[0])
    return {**document, path[0]: with_nested(inner if type(inner) is dict else {}, path[1:], value)}


def without_nested(document: Document, path: tuple[str, ...]) -> Document:
    """A copy of the document without the field at `path`. The field must exist."""
    copy = dict(document)
    if len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = without_nested(copy[path[0]], path[1:])
    return copy


def parse_unwind(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$unwind: "$path"}` or `{$unwind: {path, preserveNullAndEmptyArrays, includeArrayIndex}}`."""
    if type(spec) not in (str, dict):
        raise CommandError(
            15981, f"expected either a string or an object as specification for $unwind stage, got {type_name(spec)}"
        )
    options = spec if type(spec) is dict else {"path": spec}
    path, keeps_empty, index_path = None, False, None
    for option, value in options.items():
        if option == "path":
            path = _path(value)
        elif option == "preserveNullAndEmptyArrays":
            keeps_empty = _flag(value)
        elif option == "includeArrayIndex":
            index_path = _index_path(value)
        else:
            raise CommandError(28811, f"unrecognized option to $unwind stage: {option}")
    if not path:
        raise CommandError(28812, "no path specified to $unwind stage")
    if path[0] != "$":
        raise CommandError(28818, f"path option to $unwind stage should be prefixed with a '$': {path}")
    return (Unwind(name, spec, checked_path(path[1:]), keeps_empty, index_path),)


def _path(value: Any) -> str:
    if type(value) is not str:
        raise CommandError(28808, f"expected a string as the path for $unwind stage, got {type_name(value)}")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise CommandError(
            28809,
            f"expected a boolean for the preserveNullAndEmptyArrays option to $unwind stage, got {type_name(value)}",
        )
    return value


def _index_path(value: Any) -> tuple[str, ...]:
    if type(value) is not str or not value:
        raise CommandError(
            28810,
            f"expected a non-empty string for the includeArrayIndex  option to $unwind stage, got {type_name(value)}",
        )
    if value[0] == "$":
        raise CommandError(
            28822, f"includeArrayIndex option to $unwind stage should not be prefixed with a '$': {value}"
        )
    return checked_path(value)
