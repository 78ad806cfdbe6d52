"""The paths an update names its fields by: `a.b.0`, positional `a.$`, `a.$[]` and `a.$[identifier]`.

Rule: no part is empty, none begins with a dollar sign unless it is positional or one of a DBRef's, there is at most
one `$`, and a path does not begin with a positional part.
"""

from __future__ import annotations

from functools import lru_cache

from headrace.errors import CommandError

_DBREF_PARTS = frozenset({"$db", "$id", "$ref"})


@lru_cache(maxsize=8192)
def parse_field_path(path: str) -> tuple[str, ...]:
    """The parts of a valid path; raises what MongoDB says of an invalid one."""
    if not path:
        raise CommandError(56, "An empty update path is not valid.")
    parts = tuple(path.split("."))
    for part in parts:
        if not part:
            raise CommandError(56, f"The update path '{path}' contains an empty field name, which is not allowed.")
        if part[0] == "$" and part != "$" and not is_array_part(part) and part not in _DBREF_PARTS:
            raise CommandError(52, f"The dollar ($) prefixed field '{part}' in '{path}' is not valid for storage.")
    if parts[0] in _DBREF_PARTS:
        raise CommandError(52, f"The dollar ($) prefixed field '{parts[0]}' in '{path}' is not valid for storage.")
    if parts.count("$") > 1:
        raise CommandError(2, f"Too many positional (i.e. '$') elements found in path '{path}'")
    if parts[0] == "$":
        raise CommandError(2, f"Cannot have positional (i.e. '$') element in the first position in path '{path}'")
    if is_array_part(parts[0]):
        raise CommandError(
            2,
            f"Cannot have array filter identifier (i.e. '$[<id>]') element in the first position in path '{path}'",
        )
    return parts


def is_array_part(part: str) -> bool:
    """Whether a part is `$[]` or `$[identifier]`."""
    return part.startswith("$[") and part.endswith("]")


def is_dynamic(parts: tuple[str, ...]) -> bool:
    """Whether any part depends on the document: `$`, `$[]`, `$[identifier]`."""
    return any(part == "$" or is_array_part(part) for part in parts)
