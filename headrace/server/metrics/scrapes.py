"""The HTTP listener of `--metricsPort`: `GET /metrics` for Prometheus, and `GET /healthz`.

Rules:
- A client that reads slowly or sends nothing holds a buffer of some kilobytes, for `SCRAPE_SECONDS` at most.
- A connection has one request and one answer. It needs no login and changes nothing.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from headrace import limits
from headrace.clock import monotonic
from headrace.server.failures import log_failure
from headrace.server.listener import bound_sockets
from headrace.server.metrics.exposition import CONTENT_TYPE, exposition

if TYPE_CHECKING:
    from headrace.server.core import Core

_PLAIN: Final = "text/plain; charset=utf-8"


class ScrapeListener:
    """Listens on one address for the life of a server, on the loop's thread."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._servers: list[asyncio.Server] = []
        self._answering: set[asyncio.Task[None] | None] = set()
        self.port = 0

    async def listen(self, address: str, port: int) -> None:
        """Listen. Raises OSError if the address is unavailable."""
        for bound in bound_sockets(address, port):
            self.port = bound.getsockname()[1]
            self._servers.append(await asyncio.start_server(self._serve, sock=bound, limit=limits.SCRAPE_BYTES_MAX))

    def close(self) -> None:
        """Stop listening, and drop all connections."""
        for server in self._servers:
            server.close()
        for task in self._answering:
            if task is not None:
                task.cancel()

    def problem(self) -> str | None:
        """Return why the server does not serve, or None if it does. An answer alone shows that its loop runs."""
        core = self._core
        if core.failure is not None:
            return core.failure
        if core.ending:
            return "the server ends"
        since = core.writer.busy_since
        if since is not None and monotonic() - since > limits.HEALTH_STALL_SECONDS:
            return f"no write has ended for {monotonic() - since:.0f} s"
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        task = asyncio.current_task()
        self._answering.add(task)
        try:
            async with asyncio.timeout(limits.SCRAPE_SECONDS):
                writer.write(await self._answer(await reader.readuntil(b"\r\n\r\n")))
                writer.close()
                await writer.wait_closed()  # until everything is sent
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass
        finally:
            self._answering.discard(task)
            writer.transport.abort()

    async def _answer(self, head: bytes) -> bytes:
        method, path = _method_and_path(head)
        status, text, kind = 200, "", _PLAIN
        if not method:
            status, text = 400, "this is not an HTTP request\n"
        elif method not in ("GET", "HEAD"):
            status, text = 405, "only GET is possible\n"
        elif path == "/metrics":
            try:
                text, kind = await exposition(self._core), CONTENT_TYPE
            except Exception as error:
                log_failure("the metrics could not be made", error)
                status, text = 500, "the metrics could not be made; the log says why\n"
        elif path == "/healthz":
            problem = self.problem()
            status, text = 200 if problem is None else 503, f"{problem or 'ok'}\n"
        else:
            status, text = 404, "there are /metrics and /healthz\n"
        body = text.encode()
        allow = "Allow: GET, HEAD\r\n" if status == 405 else ""
        lines = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            f"{allow}Connection: close\r\n\r\n"
        )
        return lines.encode() + (b"" if method == "HEAD" else body)


def _method_and_path(head: bytes) -> tuple[str, str]:
    """Parse a request line; return empty words if it is not HTTP."""
    words = head.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return "", ""
    return words[0].decode("latin-1"), words[1].decode("latin-1").partition("?")[0]
