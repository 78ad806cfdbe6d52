"""Connection strings with credentials: where they are read from, and how they stay out of messages.

    mongodb://user:password@host/       the connection string itself
    env:NAME                            the value of an environment variable of the driver
    file:/run/secrets/uri               the first line of a file that only its owner can read

Rule: a reference replaces the connection string in job files, plans and command lines. It is resolved on the driver
when the job's options are parsed. Workers get the string itself, in the pickled parts of the stream; no text has it.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_uri

from headrace.spark.errors import OptionError, redacted, shown

_SCHEMES: Final = re.compile(r"^mongodb(\+srv)?://")


def resolved(uri: str) -> str:
    """Return the connection string that an option contains or refers to. Raise OptionError, without the string."""
    try:
        value = _value_of(uri, "a connection string")
    except OptionError as error:
        raise OptionError(f"the option 'uri': {error}", "uri") from None
    return checked(uri, "the option 'uri'") if value is None else checked(value, uri)


def referred(text: str, what: str = "a database's URL") -> str:
    """Return an option of another system, `what`, with its reference resolved. Raise OptionError, without the value."""
    value = _value_of(text, what)
    return text if value is None else value


def reference_in(text: str, folder: Path) -> str:
    """Return an option; the relative path of a reference `file:PATH` is relative to the folder."""
    kind, sign, path = text.partition(":")
    return f"file:{folder / path}" if kind == "file" and sign else text


def _value_of(reference: str, what: str) -> str | None:
    """Return the text that `env:NAME` or `file:PATH` refers to; None if it is neither."""
    kind, sign, name = reference.partition(":")
    if kind == "env" and sign:
        if not (value := os.environ.get(name, "").strip()):
            raise OptionError(f"the environment variable {name}, which is to hold {what}, is not set")
        return value
    return _first_line(Path(name), what) if kind == "file" and sign else None


def checked(uri: str, source: str) -> str:
    """Return the connection string if it is valid. Raise OptionError, without a string that may have a password."""
    if not _SCHEMES.match(uri):
        given = "" if "@" in uri or source != "the option 'uri'" else f": {shown(uri)}"
        problem = f"{source} is no connection string that begins with mongodb:// or mongodb+srv://{given}"
        raise OptionError(problem, "uri")
    if uri.startswith("mongodb+srv:"):
        return uri  # parsing it would query DNS
    try:
        parse_uri(uri, validate=False, warn=False)
    except (PyMongoError, ValueError) as error:
        reason = type(error).__name__ if "@" in uri else redacted(str(error))
        raise OptionError(f"{source} is no valid connection string: {reason}", "uri") from None
    return uri


def _first_line(path: Path, what: str) -> str:
    try:
        status = path.stat()
        allowed = stat.S_IRGRP if status.st_uid == 0 else 0
        if stat.S_ISREG(status.st_mode) and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) & ~allowed:
            raise OptionError(f"permissions on {path} are too open: chmod 600 {path}")
        lines = path.read_text("utf-8").strip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}, which is to hold {what}, cannot be read: {error}") from None
    return lines[0].strip() if lines else ""
