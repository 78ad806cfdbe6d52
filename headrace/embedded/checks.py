"""Checks of arguments before a command is made, with the errors that pymongo raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_NOT_IN_DATABASES: Final = ' .$/\\\x00"'


def collection_name(name: Any, what: str = "name") -> str:
    """Check and return the name of a collection. Raises TypeError and `InvalidName`."""
    is_type(name, str, what)
    if not name.isidentifier():
        if not name or ".." in name:
            _invalid("collection names cannot be empty")
        if "$" in name and not name.startswith(("oplog.$main", "$cmd")):
            _invalid(f"collection names must not contain '$': {name!r}")
        if name[0] == "." or name[-1] == ".":
            _invalid(f"collection names must not start or end with '.': {name!r}")
        if "\x00" in name:
            _invalid("collection names must not contain the null character")
    return name  # type: ignore[no-any-return]


def database_name(name: Any, what: str = "name") -> str:
    """Check and return the name of a database. Raises TypeError and `InvalidName`."""
    is_type(name, str, what)
    if not name.isidentifier():
        if not name:
            _invalid("database name cannot be the empty string")
        for character in _NOT_IN_DATABASES:
            if character in name and name != "$external":
                _invalid(f"database names cannot contain the character {character!r}")
    return name  # type: ignore[no-any-return]


def is_filter(filter: Any) -> None:
    """Raise TypeError if a filter is not a document."""
    if not isinstance(filter, Mapping):
        raise TypeError(f"filter must be a mapping, not {type(filter).__name__}")


def is_type(value: Any, kind: type, what: str, *, optional: bool = False) -> None:
    """Raise TypeError if a value is not of type `kind`; None is allowed if `optional`."""
    if not isinstance(value, kind) and not (optional and value is None):
        raise TypeError(f"{what} must be an instance of {kind.__name__}, not {type(value).__name__}")


def is_not_negative(value: Any, what: str) -> None:
    """Raise TypeError for a value that is not a whole number, ValueError for a number below 0."""
    is_type(value, int, what)
    if value < 0:
        raise ValueError(f"{what} must be >= 0")


def _invalid(message: str) -> None:
    from pymongo.errors import InvalidName

    raise InvalidName(message)
