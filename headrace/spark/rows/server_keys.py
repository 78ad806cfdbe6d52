"""The key of a document of one of several servers, because two servers may have documents with the same `_id`.

Sinks and tables of several servers identify a document by one text: the server's name and the `_id`. The table has them
in two columns. With one server the text is the `_id` alone. A newline separates the two: neither a server's name nor
Extended JSON contains one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from headrace.spark.rows.events import Row

_BETWEEN: Final = "\n"

Value = TypeVar("Value")


def server_key(server: str | None, key: str) -> str:
    """Return the text for the document with this `_id` on this server; without a server, the `_id` alone."""
    return f"{server}{_BETWEEN}{key}" if server else key


def split_server_key(text: str) -> tuple[str, str]:
    """Return the server (empty for the only one) and the text of the `_id`."""
    server, _, key = text.rpartition(_BETWEEN)
    return server, key


def of_server(server: str, by_key: Mapping[str, Value]) -> dict[str, Value]:
    """Return the mapping's items of this server, by the `_id` alone."""
    start = f"{server}{_BETWEEN}"
    return {key[len(start) :]: value for key, value in by_key.items() if key.startswith(start)}


def rows_by_server(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows of each server in order, by its name; an empty name for rows that name no server."""
    rows = list(rows)
    if rows and not any(row.server for row in rows):
        return {"": rows}
    each: dict[str, list[Row]] = {}
    for row in rows:
        each.setdefault(row.server or "", []).append(row)
    return dict(sorted(each.items()))
