"""The console's HTTP server: uvicorn on one socket of the loopback address."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvicorn
from pymongo.errors import PyMongoError

from headrace.cli.arguments import Failed
from headrace.cli.connection import failure
from headrace.cli.console.application import ConsoleApplication
from headrace.cli.console.sessions import Sessions
from headrace.errors import reason_of
from headrace.spark.errors import OptionError

ADDRESS: Final = "127.0.0.1"
CONNECTIONS_MAX: Final = 400
"""The most requests at a time, event streams included; further ones get 503."""
STOP_SECONDS: Final = 1
"""How long a request may still take when the console stops; event streams would never end."""


class ConsoleServer:
    """A console: its socket, its sessions and its event loop."""

    def __init__(self, uri: str, *, port: int = 0, jobs: Sequence[Path] = (), writes: bool = False) -> None:
        """Bind the port, without connecting to the server yet; `writes` is that of `ConsoleApplication`.

        Raises Failed for an invalid URI or a port in use.
        """
        self._loop = asyncio.new_event_loop()
        self._socket = _bound(port)
        self.port: int = self._socket.getsockname()[1]
        try:
            self._sessions = Sessions(uri)
        except (OptionError, PyMongoError) as error:
            self._socket.close()
            raise failure(error) from error
        self.token = self._sessions.token
        application = ConsoleApplication(self._sessions, port=self.port, jobs=jobs, writes=writes)
        self.cookie = application.cookie
        self._server = uvicorn.Server(
            uvicorn.Config(
                application.asgi, access_log=False, date_header=False, http="h11", lifespan="off",
                limit_concurrency=CONNECTIONS_MAX, log_config=None, proxy_headers=False, server_header=False,
                timeout_graceful_shutdown=STOP_SECONDS, ws="none",
            )
        )  # fmt: skip

    @property
    def address(self) -> str:
        """The address to open, with the token."""
        return f"http://{ADDRESS}:{self.port}/?token={self.token}"

    def run(self) -> None:
        """Serve until `stop`, SIGINT or SIGTERM. Call it on the main thread, or use `start` for a new thread."""
        try:
            self._loop.run_until_complete(self._server.serve([self._socket]))
        finally:
            self._sessions.close()
            self._socket.close()
            self._loop.close()

    def start(self) -> threading.Thread:
        """Serve on a new thread and return the thread; for tests and programs."""
        thread = threading.Thread(target=self.run, daemon=True, name="console")
        thread.start()
        return thread

    def stop(self) -> None:
        """End `run`. Safe from any thread."""
        self._server.should_exit = True


def _bound(port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((ADDRESS, port))
        bound.listen(128)
    except OSError as error:
        bound.close()
        raise Failed(f"the page cannot listen on {ADDRESS}:{port}: {reason_of(error)}") from None
    return bound
