"""An oplog that loses entries when a test says so, and never between."""

from __future__ import annotations

from typing import Any

from pymongo import MongoClient

import headrace

_UNBOUNDED = 10**9


def prune_to(server: headrace.Server, entries: int) -> None:
    """Keep the newest `entries` only.

    A server that is started with such a bound prunes by its own clock, each second: on a slow machine, in the
    middle of what a test has yet to read.
    """
    with MongoClient[dict[str, Any]](server.uri) as client:
        client.admin.command("setParameter", 1, oplogEntriesMax=entries)
        server.prune()
        client.admin.command("setParameter", 1, oplogEntriesMax=_UNBOUNDED)
