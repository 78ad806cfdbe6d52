"""The tree of the fields that an update changes: object and array nodes, and leaves with operators.

Rule of paths (`a.b.0`, positional `a.$`, `a.$[]` and `a.$[identifier]`): no component is empty. No component inside
`_id` begins with a dollar sign. There is at most one `$`. The first component is not positional.

Rule of leaves: a leaf is one operator on one field. It is parsed once, holds no state, and never changes a value in
place. `change` takes the field's old value (MISSING if there is none) and returns the new value, MISSING to remove the
field, NO_OP to leave it, or `Appended`.

Rule of $rename: neither path may go through an array. A missing source is a no-op. A source whose path leads through a
scalar is an error.

Rule of trees: two operators with the same path, or with one path inside the other's, conflict (error 40). Siblings are
applied in the order of their names, numbers by value. `$` is ordered by the index that it stands for.
Source: MongoDB's manual, "Update Operators Behavior".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final

from headrace import limits
from headrace.errors import CommandError
from headrace.query.expressions.expression import DBREF_FIELDS
from headrace.query.update.update import UpdateContext
from headrace.values.bson import MISSING, to_string
from headrace.values.paths import array_index, is_index


@lru_cache(maxsize=8192)
def parse_field_path(path: str) -> tuple[str, ...]:
    """The components of a path.

    Raises 56 for an empty component, 52 for a dollar sign inside `_id`, 2 for a misplaced positional component, 15 for
    a path that is longer than any document is deep.
    """
    if not path:
        raise CommandError(56, "An empty update path is not valid.")
    components = tuple(path.split("."))
    if len(components) > limits.PATH_COMPONENT_COUNT_MAX:
        raise CommandError(15, f"Document exceeds maximum nesting depth of {limits.NESTING_MAX}")
    for component in components:
        if not component:
            raise CommandError(56, f"The update path '{path}' contains an empty field name, which is not allowed.")
        if components[0] == "_id" and component[0] == "$" and component not in DBREF_FIELDS:
            raise CommandError(52, f"The dollar ($) prefixed field '{component}' in '{path}' is not valid for storage.")
    if components.count("$") > 1:
        raise CommandError(2, f"Too many positional (i.e. '$') elements found in path '{path}'")
    if components[0] == "$":
        raise CommandError(2, f"Cannot have positional (i.e. '$') element in the first position in path '{path}'")
    if is_array_component(components[0]):
        raise CommandError(
            2,
            f"Cannot have array filter identifier (i.e. '$[<id>]') element in the first position in path '{path}'",
        )
    return components


def is_array_component(component: str) -> bool:
    """Whether a component is `$[]` or `$[identifier]`."""
    return component.startswith("$[") and component.endswith("]")


def is_dynamic(components: tuple[str, ...]) -> bool:
    """Whether any component depends on the document: `$`, `$[]`, `$[identifier]`."""
    return any(component == "$" or is_array_component(component) for component in components)


FieldRef = tuple[str | int, ...]
"""The path of a field: names, and ints for indexes in existing arrays."""


def dotted(path: FieldRef) -> str:
    """A path as text."""
    return ".".join(map(str, path))


class NoOp:
    """The type of `NO_OP`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NO_OP"


NO_OP: Final = NoOp()
"""A leaf returns this if it does not change the field."""


@dataclass(frozen=True, slots=True)
class Appended:
    """An array that grew by `count` values at its end. The oplog records only the new values."""

    array: list[Any]
    count: int


class ApplyParams:
    """The input of an update's leaves in one run: the document before the update (for messages) and the context."""

    __slots__ = ("context", "document")

    def __init__(self, document: dict[str, Any], context: UpdateContext) -> None:
        self.document = document
        self.context = context


class UpdateLeafNode:
    """One operator on one path.

    `creates`: a missing field is created (`change` is called with MISSING). If False, a missing field is ignored, but a
    path that is not viable is an error unless `lenient`. `insert_only`: the leaf applies only when an upsert inserts.
    `depth` is the number of levels of objects and arrays that the new value may add below the field.
    """

    __slots__ = ("depth",)
    creates: ClassVar[bool] = True
    insert_only: ClassVar[bool] = False
    lenient: ClassVar[bool] = False

    def __init__(self) -> None:
        self.depth = 0

    def change(self, old: Any, params: ApplyParams, path: FieldRef) -> Any:
        """The new value. `path` is the field's path, for messages. Raises 2 or 14 for an old value of a wrong type."""
        raise NotImplementedError


def depth(value: Any) -> int:
    """The nesting depth of objects and arrays in a value; 0 for a scalar."""
    kind = type(value)
    if kind is not dict and kind is not list:
        return 0
    items = value if kind is list else value.values()
    if _CONTAINERS.isdisjoint(map(type, items)):
        return 1
    return 1 + max(map(depth, items))


_CONTAINERS: Final = frozenset({dict, list})


def element_text(name: str, value: Any) -> str:
    """A field with its value, as `a: 5`."""
    return f"{name}: {to_string(value)}"


def id_text(document: dict[str, Any]) -> str:
    """The document's `_id` as an element, or `no id`, to identify it in messages."""
    value = document.get("_id", MISSING)
    return "no id" if value is MISSING else element_text("_id", value)


ArrayFilters = dict[str, Callable[[dict[str, Any]], bool]]


class UpdateObjectNode:
    """Children by field name or array index; `positional` is the child under `$`."""

    __slots__ = ("_merged", "children", "ordered", "positional")

    def __init__(self) -> None:
        self.children: dict[str, Any] = {}
        self.positional: Any = None
        self.ordered: tuple[tuple[str, Any], ...] = ()
        self._merged: dict[str, tuple[tuple[str, Any], ...]] = {}

    def close(self) -> None:
        """Sort the children. Call it once, after all children were added."""
        has_number = any(map(str.isdecimal, self.children))
        names = sorted(self.children, key=sibling_key if has_number else None)  # text sorts as its UTF-8 does
        self.ordered = tuple(zip(names, map(self.children.__getitem__, names)))
        for child in (*self.children.values(), self.positional):
            if child is not None and not isinstance(child, UpdateLeafNode):
                child.close()

    def in_order(self, positional: str | None, path: FieldRef) -> tuple[tuple[str, Any], ...]:
        """The children in order; `positional` is the index that `$` stands for. Raises 2 if it is needed but None.

        `path` is the place of the node, for the message of a conflict.
        """
        if self.positional is None:
            return self.ordered
        if positional is None:
            raise CommandError(2, "The positional operator did not find the match needed from the query.")
        merged = self._merged.get(positional)
        if merged is None:
            if len(self._merged) > 64:
                self._merged.clear()
            merged = self._merged[positional] = self._with_positional(positional, path)
        return merged

    def _with_positional(self, positional: str, path: FieldRef) -> tuple[tuple[str, Any], ...]:
        children = dict(self.children)
        existing = children.get(positional)
        children[positional] = (
            self.positional if existing is None else merge(existing, self.positional, dotted((*path, positional)))
        )
        return tuple((name, children[name]) for name in sorted(children, key=sibling_key))


class UpdateArrayNode:
    """Children by array filter identifier. The empty identifier stands for `$[]`, all elements."""

    __slots__ = ("_merged", "children", "filters", "ordered")

    def __init__(self, filters: ArrayFilters) -> None:
        self.filters = filters
        self.children: dict[str, Any] = {}
        self.ordered: tuple[tuple[str, Any, Callable[[dict[str, Any]], bool] | None], ...] = ()
        self._merged: dict[tuple[str, ...], Any] = {}

    def close(self) -> None:
        """Sort the children. Call it once, after all children were added."""
        self.ordered = tuple((name, self.children[name], self.filters.get(name)) for name in sorted(self.children))
        for child in self.children.values():
            if not isinstance(child, UpdateLeafNode):
                child.close()

    def all_matching(self, array: list[Any], path: FieldRef) -> list[tuple[int, Any]]:
        """The elements of the array at `path` that a filter matches, as (index, node to apply).

        Raises 40 if nodes conflict.
        """
        if len(self.ordered) > 1:
            found = ((index, self._matching(element, (*path, index))) for index, element in enumerate(array))
            return [(index, node) for index, node in found if node is not None]
        ((name, child, test),) = self.ordered
        if test is None:
            return [(index, child) for index in range(len(array))]
        return [(index, child) for index, element in enumerate(array) if test({name: element})]

    def _matching(self, element: Any, path: FieldRef) -> Any:
        """The node to apply to the element at `path`, or None if no filter matches it. Raises 40 if nodes conflict."""
        names = [name for name, _, test in self.ordered if test is None or test({name: element})]
        if len(names) < 2:
            return self.children[names[0]] if names else None
        key = tuple(names)
        node = self._merged.get(key)
        if node is None:
            node = self.children[names[0]]
            for name in names[1:]:
                node = merge(node, self.children[name], dotted(path))
            self._merged[key] = node
        return node


def sibling_key(name: str) -> tuple[bytes, int, bytes]:
    """The sort key of siblings: names by their bytes. Numbers are sorted by value, at the place of "0"."""
    text = name.encode()
    return (b"0", len(text), text) if is_index(name) else (text, 0, text)


def merge(left: Any, right: Any, where: str) -> Any:
    """One node that applies both. Raises 40 if they conflict. `where` is the path, for the message."""
    if isinstance(left, UpdateLeafNode) or type(left) is not type(right):
        raise CommandError(40, f"Update created a conflict at '{where}'")
    merged: Any = (
        UpdateObjectNode() if type(left) is UpdateObjectNode else UpdateArrayNode({**left.filters, **right.filters})
    )
    for name in {**left.children, **right.children}:
        both = [side.children[name] for side in (left, right) if name in side.children]
        component = name if type(merged) is UpdateObjectNode else f"$[{name}]"
        merged.children[name] = both[0] if len(both) == 1 else merge(both[0], both[1], f"{where}.{component}")
    if type(merged) is UpdateObjectNode:
        ends = [side.positional for side in (left, right) if side.positional is not None]
        if ends:
            merged.positional = ends[0] if len(ends) == 1 else merge(ends[0], ends[1], f"{where}.$")
    merged.close()
    return merged


def add(root: UpdateObjectNode, components: tuple[str, ...], leaf: Any, filters: ArrayFilters, used: set[str]) -> None:
    """Add a leaf at a path, and its identifiers to `used`. Raises 40 for a conflict, 2 for an unknown identifier."""
    node: Any = root
    last = len(components) - 1
    for at, component in enumerate(components):
        name = _child_name(component, components, filters, used) if component[0] == "$" else component
        child = node.positional if component == "$" else node.children.get(name)
        if at == last:
            if child is not None:
                raise _conflict(components, last)
            child = leaf
        elif child is None:
            child = UpdateArrayNode(filters) if is_array_component(components[at + 1]) else UpdateObjectNode()
        elif type(child) is not (UpdateArrayNode if is_array_component(components[at + 1]) else UpdateObjectNode):
            raise _conflict(components, at)
        if component == "$":
            node.positional = child
        else:
            node.children[name] = child
        node = child


def _conflict(components: tuple[str, ...], at: int) -> CommandError:
    path, conflict_at = ".".join(components), ".".join(components[: at + 1])
    return CommandError(40, f"Updating the path '{path}' would create a conflict at '{conflict_at}'")


def _child_name(component: str, components: tuple[str, ...], filters: ArrayFilters, used: set[str]) -> str:
    if not is_array_component(component):
        return component
    identifier = component[2:-1]
    if identifier and identifier not in filters:
        raise CommandError(
            2,
            f"No array filter found for identifier '{identifier}' in path '{'.'.join(components)}'",
        )
    used.add(identifier)
    return identifier


# $rename.


class RenameNode(UpdateLeafNode):
    """The leaf at the destination. It has no `change`: two fields change, so `Walk` sets and removes them."""

    __slots__ = ("source", "target")

    def __init__(self, source: tuple[str, ...], target: tuple[str, ...]) -> None:
        super().__init__()
        self.source = source
        self.target = target

    def value(self, document: dict[str, Any]) -> Any:
        """The value of the source, or MISSING. Raises 2 for a source in an array, 28 for a path that is not viable."""
        value: Any = document
        array = None
        for at, component in enumerate(self.source):
            name = self.source[at - 1] if at else ""
            if type(value) is dict:
                value = value.get(component, MISSING)
            else:
                index = array_index(component) if type(value) is list else None
                if index is None:
                    raise CommandError(
                        28,
                        f"cannot use the part ({name} of {'.'.join(self.source)}) "
                        f"to traverse the element ({{{element_text(name, value)}}})",
                    )
                array = name
                value = value[index] if index < len(value) else MISSING
            if value is MISSING:
                return MISSING
        if array is not None:
            raise _in_array("source", self.source, document, array)
        return value

    def check_target(self, document: dict[str, Any], path: FieldRef, inside_array: bool) -> None:
        """Raise 2 if the target is in an array.

        `path` is the target's path. With `inside_array` it is the path of the array in which the target would be
        created.
        """
        arrays = [str(path[at - 1]) for at, component in enumerate(path) if type(component) is int]
        if inside_array:
            arrays.append(str(path[-1]))
        if arrays:
            raise _in_array("destination", self.target, document, arrays[-1])

    def check_depth(self, value: Any, most: int) -> None:
        """Raise 15 if `value` at the target would nest deeper than `most` levels."""
        if len(self.target) + depth(value) > most:
            raise CommandError(15, f"Document exceeds maximum nesting depth of {most}")


def _in_array(which: str, components: tuple[str, ...], document: dict[str, Any], array: str) -> CommandError:
    return CommandError(
        2,
        f"The {which} field cannot be an array element, '{'.'.join(components)}' in doc with {id_text(document)} "
        f"has an array field called '{array}'",
    )


def parse_rename(source: str, target: Any) -> RenameNode:
    """The leaf of {$rename: {source: target}}, both valid paths.

    Raises 2 for overlapping or dynamic paths, 9867600 for a null byte.
    """
    pair = f'{source}: "{target}"'
    if "\0" in target:
        raise CommandError(9867600, f"The destination field for $rename must not have a null byte: {pair}")
    before, after = parse_field_path(source), parse_field_path(target)
    if before == after:
        raise CommandError(2, f"The source and target field for $rename must differ: {pair}")
    if before == after[: len(before)] or after == before[: len(after)]:
        raise CommandError(2, f"The source and target field for $rename must not be on the same path: {pair}")
    for which, components in (("source", before), ("destination", after)):
        if is_dynamic(components):
            raise CommandError(2, f"The {which} field for $rename may not be dynamic: {'.'.join(components)}")
    return RenameNode(before, after)
