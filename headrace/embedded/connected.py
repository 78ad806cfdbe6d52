"""`headrace.connect`: a `pymongo.MongoClient` on a server in this process. The server ends with the client.

It is for code that takes pymongo's client. All methods work, but each call goes through a socket.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from pymongo import MongoClient

from headrace.clock import Clock
from headrace.server.server import Server


class ConnectedClient(MongoClient[dict[str, Any]]):
    """A client whose `close` also ends its server, and removes a temporary data directory."""

    _server: Server
    _folder: str

    def close(self) -> None:
        """Close the connections and the server. A second call has no effect."""
        super().close()
        self._server.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def connect(
    path: str | os.PathLike[str] | None = None, *, oplog: bool = True, clock: Clock | None = None,
    server_options: dict[str, Any] | None = None, **client_options: Any,
) -> ConnectedClient:  # fmt: skip
    """Return pymongo's client on a data directory, through a Unix socket that only this user can reach.

    Args:
        path: The data directory, created if missing. For None or ":memory:" a temporary one, which `close` removes.
        oplog: False starts a standalone without change streams.
        clock: The source of time, for tests.
        server_options: Fields of `ServerOptions`, such as `oplog_hours`.
        client_options: Arguments of `pymongo.MongoClient`.

    Raises:
        DirectoryInUse: Another process has the directory open.
        UnusableDirectory: The data file is damaged, belongs to another program, or cannot be written.
    """
    folder = tempfile.mkdtemp(prefix="headrace-socket-")
    try:
        server = Server(
            path, host=None, port=0, oplog=oplog, clock=clock, unix_socket_prefix=Path(folder), **(server_options or {})
        ).start()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    client = ConnectedClient(f"mongodb://{quote_plus(server.unix_socket)}/?directConnection=true", **client_options)
    client._server, client._folder = server, folder
    return client
