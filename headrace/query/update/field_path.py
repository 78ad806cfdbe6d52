"""Paths in updates: `a.b.0`, positional `a.$`, `a.$[]` and `a.$[identifier]`.

Rule: no component is empty. No component inside `_id` begins with a dollar sign. There is at most one `$`. The first
component is not positional.
"""

from __future__ import annotations

from functools import lru_cache

from headrace import limits
from headrace.errors import CommandError
from headrace.query.expressions.field_paths import DBREF_FIELDS


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
