"""$rename: sets a field's value at another path and removes the field.

Rule: neither path may go through an array. A missing source is a no-op. A source whose path leads through a scalar is
an error.
"""

from __future__ import annotations

from typing import Any

from headrace.errors import CommandError
from headrace.query.update.field_path import is_dynamic, parse_field_path
from headrace.query.update.leaf_node import FieldRef, UpdateLeafNode, depth
from headrace.query.update.message_text import element_text, id_text
from headrace.values.bson import MISSING
from headrace.values.paths import array_index


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
