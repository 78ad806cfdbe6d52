"""Checks of paths before anything is opened. Workers check paths, too, so this module imports no table format."""

from __future__ import annotations

import os
import re
from typing import Final

_PATH_BYTES_MAX: Final = 4096
_NAME_BYTES_MAX: Final = 255
"""Linux's limit on a name in a path; a whole path has `_PATH_BYTES_MAX`."""
_EXPANDED: Final = re.compile(r"~|.*\$(\w|\{)", re.DOTALL)
"""A path that a shell would expand before a program sees it."""

STORE_SCHEMES: Final = ("abfs", "abfss", "az", "azure", "gs", "s3", "s3a")
"""The URL schemes of the object stores that can hold Delta tables."""
_ONE_SLASH: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")
"""The beginning of a URL with a slash too few, which would be a folder with a colon in its name."""


class LocationError(ValueError):
    """No table can be at this path or URL."""


def check_scheme(path: str) -> None:
    """Raise LocationError for a URL whose scheme is not an object store's."""
    scheme, mark, _ = path.partition("://")
    if mark and scheme not in STORE_SCHEMES:
        raise LocationError(f"no table can be at {path!r}: Headrace knows paths and {', '.join(STORE_SCHEMES)}")


def checked_path(path: str) -> str:
    """Return the path or URL unchanged. Raise LocationError, without the path, if it cannot be meant."""
    if not path.strip():
        raise LocationError(f"is a path, not {path!r}")
    if "\0" in path:
        raise LocationError("has a NUL character, which no path can have")
    longest = max(len(os.fsencode(name)) for name in path.split("/"))
    if (size := len(os.fsencode(path))) > _PATH_BYTES_MAX or longest > _NAME_BYTES_MAX:
        raise LocationError(
            f"has {size} bytes: a path has at most {_PATH_BYTES_MAX}, and each name in it at most {_NAME_BYTES_MAX}"
        )
    if _EXPANDED.match(path):
        raise LocationError(
            f"is taken as it is written, and {path!r} has a '~' or '$' that would not be expanded: write the folder out"
        )
    if match := _ONE_SLASH.match(path):
        raise LocationError(f"is a path, or a URL with two slashes after {match[0][:-1]!r}, not {path!r}")
    scheme, mark, rest = path.partition("://")
    if mark and scheme != "file" and not {"", ".", ".."}.isdisjoint(rest.removesuffix("/").split("/")):
        raise LocationError(f"is a URL, and has no folder '.', '..' or without a name: {path!r}")
    return path
