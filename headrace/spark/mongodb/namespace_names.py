"""Names that a database and a collection can have, by MongoDB's rules."""

from __future__ import annotations

import re
from typing import Final

_DATABASE_BYTES_MAX: Final = 63
_COLLECTION_BYTES_MAX: Final = 253
"""The most bytes of a collection's name in a database whose name has one: together, with a dot, at most 255."""
_NOT_IN_DATABASES: Final = re.compile(r'[/\\. "$\0]')
_NOT_IN_COLLECTIONS: Final = re.compile(r"\A\.|[$\0]|\.\Z")


class NameNotPossible(ValueError):
    """No database or collection has this name."""


def check_database_name(name: str) -> str:
    """Return the name. Raise NameNotPossible, without the name of the key, if no database can have it."""
    if not 0 < len(name.encode()) <= _DATABASE_BYTES_MAX or _NOT_IN_DATABASES.search(name):
        raise NameNotPossible(
            f'is the name of a database, of at most {_DATABASE_BYTES_MAX} bytes, without / \\ . " $, a blank or NUL, '
            f"not {name!r}"
        )
    return name


def check_collection_name(name: str) -> str:
    """Return the name. Raise NameNotPossible, without the name of the key, if no collection can have it."""
    if not 0 < len(name.encode()) <= _COLLECTION_BYTES_MAX or _NOT_IN_COLLECTIONS.search(name):
        raise NameNotPossible(
            f"is the name of a collection, of at most {_COLLECTION_BYTES_MAX} bytes, without $, NUL, or a dot at its "
            f"beginning or end, not {name!r}"
        )
    return name
