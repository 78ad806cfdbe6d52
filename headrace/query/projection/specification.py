"""Parses the specification of a projection to a tree of fields and its type, inclusion or exclusion.

Rule: a specification either includes or excludes; only `_id` may differ. Computed fields require inclusion. `$meta` is
the exception: it goes with both, and alone it includes in a pipeline and excludes in find. `$slice` alone does not
decide: with no other field the projection excludes (nothing).

Source of the error codes: the answers of MongoDB's projection parser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from bson import Decimal128, Int64

from headrace.errors import CommandError
from headrace.query.collation import Collation
from headrace.query.expressions.expression import checked_path
from headrace.query.expressions.numbers import truthy
from headrace.query.match import parse_filter
from headrace.values.bson import to_string

if TYPE_CHECKING:
    from headrace.query.document_metadata import Readers

FLAGS: Final = (bool, int, Int64, float, Decimal128)
SLICE_SYNTAX: Final = "Invalid $slice syntax. The given syntax did not match the find() nor the expression syntax"


Transform = Callable[[dict[str, Any]], dict[str, Any]]
"""One step of a projection, from a document to the projected document."""


class ProjectionType(Enum):
    """How a projection treats fields that it does not name."""

    EXCLUSION = "exclusion"
    INCLUSION = "inclusion"


@dataclass(frozen=True, slots=True)
class ComputedField:
    """A field whose value is the value of an expression."""

    expression: Any


@dataclass(frozen=True, slots=True)
class ElemMatchField:
    """A field whose value is the first array element that matches a condition (`$elemMatch` of find)."""

    element: Any


@dataclass(frozen=True, slots=True)
class IncludedField:
    """An included field. It has no effect in an exclusion."""


@dataclass(frozen=True, slots=True)
class ExcludedField:
    """An excluded field."""


@dataclass(frozen=True, slots=True)
class SlicedField:
    """A field whose arrays are cut last (`slices`): included by an inclusion, unchanged by an exclusion."""


ProjectionLeaf = ComputedField | ElemMatchField | IncludedField | ExcludedField | SlicedField


@dataclass(slots=True)
class ProjectionTree:
    """The fields that the specification names in one level, in its order."""

    fields: dict[str, ProjectionLeaf | ProjectionTree] = field(default_factory=dict)

    @property
    def computes(self) -> bool:
        """Whether a field at this level or below is computed."""
        return any(
            item.computes if isinstance(item, ProjectionTree) else isinstance(item, (ComputedField, ElemMatchField))
            for item in self.fields.values()
        )


@dataclass(frozen=True, slots=True)
class ProjectionSpec:
    """A checked specification: `slices` are (path, skip or None, limit), `positional` is the path before `.$`."""

    mode: ProjectionType
    tree: ProjectionTree
    slices: tuple[tuple[tuple[str, ...], int | None, int], ...]
    positional: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class ProjectionScope:
    """The names that computed fields may refer to: constant variables, names bound at evaluation time, and the
    arguments of `$meta` for which documents have a value."""

    collation: Collation | None
    constants: Mapping[str, Any]
    bound: frozenset[str]
    metadata: Readers


def read_specification(spec: dict[str, Any], *, is_find: bool, scope: ProjectionScope) -> ProjectionSpec:
    """The checked specification; see `parse_projection` for the errors."""
    if not spec and not is_find:
        raise CommandError(
            51272, "Invalid $project :: caused by :: projection specification must have at least one field"
        )
    reader = _SpecificationReader(is_find, scope)
    for path, value in spec.items():
        reader.read(path, value)
    return reader.finished()


class _SpecificationReader:
    """Collects the fields of a specification one by one."""

    def __init__(self, is_find: bool, scope: ProjectionScope) -> None:
        self.is_find = is_find
        self.scope = scope
        self.tree = ProjectionTree()
        self.mode: ProjectionType | None = None
        self.id_flag: bool | None = None
        self.slices: list[tuple[tuple[str, ...], int | None, int]] = []
        self.positional: tuple[str, ...] | None = None
        self.has_element_match = False
        self.has_meta = False
        self.element = ""  # the name of the field in its own object, for messages

    def finished(self) -> ProjectionSpec:
        mode = self.mode
        if mode is None:
            includes = self.id_flag or self.has_element_match or (self.has_meta and not self.is_find)
            mode = ProjectionType.INCLUSION if includes else ProjectionType.EXCLUSION
        if mode is ProjectionType.INCLUSION:
            if "_id" not in self.tree.fields:
                self.tree.fields["_id"] = IncludedField()
            elif isinstance(self.tree.fields["_id"], ExcludedField):
                del self.tree.fields["_id"]
        return ProjectionSpec(mode, self.tree, tuple(self.slices), self.positional)

    def read(self, path: str, value: Any) -> None:
        """Add one field; nested objects are read field by field."""
        self.element = path
        self._read(path, value)

    def _read(self, path: str, value: Any) -> None:
        if path.endswith(".$") and (self.is_find or len(path) > 2):
            self._read_positional(path, value)
        elif self.is_find and ".$." in path:
            raise CommandError(31394, "As of 4.4, it's illegal to specify positional operator in the middle of a path.")
        elif type(value) is dict:
            self._read_object(path, value)
        elif type(value) in FLAGS:
            self._read_flag(path, truthy(value))
        else:
            self._read_expression(path, value)

    def _read_flag(self, path: str, included: bool) -> None:
        if path == "_id":
            self.id_flag = included
        else:
            wanted = ProjectionType.INCLUSION if included else ProjectionType.EXCLUSION
            if self.mode not in (None, wanted):
                if included:
                    raise CommandError(31253, f"Cannot do inclusion on field {self.element} in exclusion projection")
                raise CommandError(31254, f"Cannot do exclusion on field {self.element} in inclusion projection")
            self.mode = wanted
        self._add(checked_path(path), IncludedField() if included else ExcludedField())

    def _read_positional(self, path: str, value: Any) -> None:
        if not self.is_find:
            raise CommandError(31324, "Cannot use positional projection in aggregation projection")
        if path == ".$":
            raise CommandError(5392900, "Positional projection requires a field to project")
        if type(value) not in FLAGS:
            code = 31271 if type(value) is dict else 31308
            raise CommandError(code, "positional projection cannot be used with an expression or a literal")
        if not truthy(value) or self.mode is ProjectionType.EXCLUSION:
            raise CommandError(31395, "positional projection cannot be used with exclusion")
        if self.positional is not None:
            raise CommandError(31276, "Cannot specify more than one positional projection per query.")
        if self.has_element_match:
            raise CommandError(31256, "Cannot specify positional operator and $elemMatch.")
        field_path = checked_path(path[:-2])
        self.mode = ProjectionType.INCLUSION
        self.positional = field_path
        self._add(field_path, IncludedField())

    def _read_object(self, path: str, value: dict[str, Any]) -> None:
        first = next(iter(value), None)
        if first is None:
            raise CommandError(51270, f"Invalid empty sub-projection: {self.element}")
        if not first.startswith("$"):
            checked_path(path)
            for name, inner in value.items():
                if name.startswith("$"):
                    raise CommandError(31325, f"Bad projection specification: {path}.{name}")
                if name.endswith(".$"):
                    raise CommandError(31271, "positional projection cannot be used in a sub-projection")
                self.element = name
                self._read(f"{path}.{name}", inner)
        elif len(value) == 1 and self.is_find and first == "$slice":
            self._read_slice(path, value)
        elif len(value) == 1 and self.is_find and first == "$elemMatch":
            self._read_element_match(path, value[first])
        elif len(value) == 1 and first == "$meta":
            self._read_meta(path, value)
        elif len(value) > 1:
            raise CommandError(16410, f"an operator stands alone in the projection of a field: {path}")
        else:
            self._read_expression(path, value)

    def _read_slice(self, path: str, value: dict[str, Any]) -> None:
        argument = value["$slice"]
        field_path = checked_path(path)
        if type(argument) in FLAGS and type(argument) is not bool:
            self.slices.append((field_path, None, clamped(argument)))
            self._add(field_path, SlicedField())
            return
        numeric = type(argument) is list and len(argument) == 2 and all(type(x) in FLAGS[1:] for x in argument)
        if numeric:
            skip, limit = clamped(argument[0]), clamped(argument[1])
            if limit <= 0:
                raise CommandError(28667, f"{SLICE_SYNTAX}: the limit must be positive")
            self.slices.append((field_path, skip, limit))
            self._add(field_path, SlicedField())
            return
        if type(argument) is not list or not 2 <= len(argument) <= 3:
            raise CommandError(28667, SLICE_SYNTAX)
        self._read_expression(path, value)

    def _read_element_match(self, path: str, argument: Any) -> None:
        if type(argument) is not dict:
            raise CommandError(31274, "elemMatch: Invalid argument, object required")
        field_path = checked_path(path)
        if self.positional is not None:
            raise CommandError(31255, "Cannot specify positional operator and $elemMatch.")
        if len(field_path) > 1:
            raise CommandError(31275, "Cannot use $elemMatch projection on a nested field")
        self.has_element_match = True
        inner = parse_filter({path: {"$elemMatch": argument}}, collation=self.scope.collation, plain=True)
        self._add(field_path, ElemMatchField(inner))

    def _read_meta(self, path: str, value: dict[str, Any]) -> None:
        """Add the field without choosing between inclusion and exclusion."""
        argument = value["$meta"]
        if type(argument) is not str:
            raise CommandError(17307, "$meta must be a string")
        if argument == "sortKey" and self.is_find and argument not in self.scope.metadata:
            raise CommandError(2, "cannot use sortKey $meta projection without a sort")
        self.has_meta = True
        self._add_computed(checked_path(path), value)

    def _read_expression(self, path: str, value: Any) -> None:
        # Plain projections do not need these.
        from headrace.query.expressions.operator_table import OPERATORS, UNSUPPORTED

        if self.mode is ProjectionType.EXCLUSION and type(value) is not dict:
            found = f"{self.element}: {to_string(value)}"
            raise CommandError(31310, f"Cannot use an expression {found} in an exclusion projection")
        if self.mode is ProjectionType.EXCLUSION:
            raise CommandError(31252, "Cannot use expression other than $meta in exclusion projection")
        self.mode = ProjectionType.INCLUSION
        field_path = checked_path(path)
        name = next(iter(value)) if type(value) is dict and len(value) == 1 else None
        known = name is None or name in OPERATORS or name in UNSUPPORTED or name == "$elemMatch"  # which fails as 168
        if not known:
            raise CommandError(31325, f"Unknown expression {name}")
        self._add_computed(field_path, value)

    def _add_computed(self, field_path: tuple[str, ...], value: Any) -> None:
        from headrace.query.expressions import ParseContext, parse_expression

        scope = self.scope
        context = ParseContext(scope.constants, scope.bound, scope.collation, metadata=scope.metadata)
        self._add(field_path, ComputedField(parse_expression(value, context)))

    def _add(self, field_path: tuple[str, ...], leaf: ProjectionLeaf) -> None:
        tree = self.tree
        for index, name in enumerate(field_path[:-1]):
            below = tree.fields.setdefault(name, ProjectionTree())
            if not isinstance(below, ProjectionTree):
                rest = ".".join(field_path[index + 1 :])
                raise CommandError(31249, f"Path collision at {'.'.join(field_path)} remaining portion {rest}")
            tree = below
        if field_path[-1] in tree.fields:
            raise CommandError(31250, f"Path collision at {'.'.join(field_path)}")
        tree.fields[field_path[-1]] = leaf


def clamped(number: Any) -> int:
    """A number truncated and saturated to 32 bits; NaN is 0."""
    value = float(number.to_decimal()) if type(number) is Decimal128 else float(number)
    if value != value:  # noqa: PLR0124  (only NaN differs from itself)
        return 0
    return int(max(-(2.0**31), min(2.0**31 - 1, value)))
