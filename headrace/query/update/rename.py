"""$rename: a field's value set at another path, and the field removed.

Rule: neither path goes through an array; a source that is not there does nothing, one that cannot be there
(its path leads through a scalar) is an error.
"""

from __future__ import annotations

from typing import Any

from headrace.errors import CommandError
from headrace.query.update.field_path import is_dynamic, parse_field_path
from headrace.query.update.leaf_node import Leaf, Path, depth
from headrace.query.update.message_text import element_text, id_text
from headrace.values.bson import MISSING
from headrace.values.paths import array_index


class Rename(Leaf):
    """Stands at the destination. It has no `change`: the walk sets and removes, since two places change."""

    __slots__ = ("source", "target")

    def __init__(self, source: tuple[str, ...], target: tuple[str, ...]) -> None:
        super().__init__()
        self.source = source
        self.target = target

    def value(self, document: dict[str, Any]) -> Any:
        """What the source holds, or MISSING; raises for a source in an array or on a path that is not viable."""
        found: Any = document
        array = None
        for at, part in enumerate(self.source):
            name = self.source[at - 1] if at else ""
            if type(found) is dict:
                found = found.get(part, MISSING)
            else:
                index = array_index(part) if type(found) is list else None
                if index is None:
                    raise CommandError(
                        28,
                        f"cannot use the part ({name} of {'.'.join(self.source)}) "
                        f"to traverse the element ({{{element_text(name, found)}}})",
                    )
                array = name
                found = found[index] if index < len(found) else MISSING
            if found is MISSING:
                return MISSING
        if array is not None:
            raise _in_array("source", self.source, document, array)
        return found

    def check_target(self, document: dict[str, Any], path: Path, inside_array: bool) -> None:
        """`path` is that of the target, or with `inside_array` of the array in which it would be made."""
        arrays = [str(path[at - 1]) for at, part in enumerate(path) if type(part) is int]
        if inside_array:
            arrays.append(str(path[-1]))
        if arrays:
            raise _in_array("destination", self.target, document, arrays[-1])

    def check_depth(self, value: Any, most: int) -> None:
        if len(self.target) + depth(value) > most:
            raise CommandError(15, f"Document exceeds maximum nesting depth of {most}")


def _in_array(which: str, parts: tuple[str, ...], document: dict[str, Any], array: str) -> CommandError:
    return CommandError(
        2,
        f"The {which} field cannot be an array element, '{'.'.join(parts)}' in doc with {id_text(document)} "
        f"has an array field called '{array}'",
    )


def parse_rename(source: str, target: Any) -> Rename:
    """The target is known to be a string and a valid path."""
    pair = f'{source}: "{target}"'
    before, after = parse_field_path(source), parse_field_path(target)
    if before == after:
        raise CommandError(2, f"The source and target field for $rename must differ: {pair}")
    if before == after[: len(before)] or after == before[: len(after)]:
        raise CommandError(2, f"The source and target field for $rename must not be on the same path: {pair}")
    for which, parts in (("source", before), ("destination", after)):
        if is_dynamic(parts):
            raise CommandError(2, f"The {which} field for $rename may not be dynamic: {'.'.join(parts)}")
    return Rename(before, after)
