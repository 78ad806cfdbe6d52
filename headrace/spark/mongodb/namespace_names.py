"""Names that a database and a collection can have, by MongoDB's rules."""

from __future__ import annotations

import re
from typing import Final

from headrace import limits
from headrace.spark.errors import shown

_COLLECTION_BYTES_MAX: Final = limits.NAMESPACE_BYTES_MAX - 2
"""The most bytes of a collection's name, in a database whose name has one."""
_NOT_IN_DATABASES: Final = re.compile(r'[/\\. "$\0]')
_NOT_IN_COLLECTIONS: Final = re.compile(r"\A\.|[$\0]|\.\Z")


class NameNotPossible(ValueError):
    """No database or collection has this name."""


def check_database_name(name: str) -> str:
    """Return the name. Raise NameNotPossible, without the name of the key, if no database can have it."""
    without = '/ \\ . " $, a blank or NUL'
    return _checked(name, "a database", limits.DATABASE_NAME_BYTES_MAX, _NOT_IN_DATABASES, without)


def check_collection_name(name: str) -> str:
    """Return the name. Raise NameNotPossible, without the name of the key, if no collection can have it."""
    without = "$, NUL, or a dot at its beginning or end"
    return _checked(name, "a collection", _COLLECTION_BYTES_MAX, _NOT_IN_COLLECTIONS, without)


def _checked(name: str, what: str, bytes_max: int, refused: re.Pattern[str], without: str) -> str:
    if not 0 < len(name.encode()) <= bytes_max or refused.search(name):
        possible = f"is the name of {what}, of at most {bytes_max} bytes, without {without}"
        raise NameNotPossible(f"{possible}, not {shown(name)}")
    return name
