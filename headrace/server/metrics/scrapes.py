"""The HTTP listener of `--metricsPort`: `GET /metrics` for Prometheus, and `GET /healthz`.

Rules:
- A scraper that reads slowly, or sends nothing, holds a buffer of some kilobytes, for `SCRAPE_SECONDS` at most.
- However often it asks, the text is made once in `SCRAPE_REUSE_SECONDS`.
- A connection has one request and one answer. It needs no login, and changes nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from headrace import limits
from headrace.clock import monotonic
from headrace.prometheus_text import CONTENT_TYPE
from headrace.server.failures import log_failure
from headrace.server.listener import bound_sockets
from headrace.server.metrics.exposition import exposition

if TYPE_CHECKING:
    from headrace.server.core import Core

_REASONS: Final = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error",
    503: "Service Unavailable",
}  # fmt: skip
_PLAIN: Final = "text/plain; charset=utf-8"


class ScrapeListener:
    """Listens on one address for the life of a server. On the loop's thread."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._servers: list[asyncio.Server] = []
        self._open: dict[_Scrape, None] = {}
        self._making: asyncio.Task[str] | None = None
        self._made_at = 0.0
        self.port = 0

    async def listen(self, address: str, port: int) -> None:
        """Raises OSError where the address cannot be had."""
        for bound in bound_sockets(address, port):
            self.port = bound.getsockname()[1]
            self._servers.append(await self._core.loop.create_server(lambda: _Scrape(self), sock=bound))

    def close(self) -> None:
        """Listen no more, and drop who is connected."""
        for server in self._servers:
            server.close()
        for scrape in list(self._open):
            scrape.abort()
        if self._making is not None:
            self._making.cancel()

    def joined(self, scrape: _Scrape) -> None:
        """A scraper has connected: of too many, the oldest goes."""
        self._open[scrape] = None
        if len(self._open) > limits.SCRAPE_COUNT_MAX:
            next(iter(self._open)).abort()

    def left(self, scrape: _Scrape) -> None:
        """A scraper has gone."""
        self._open.pop(scrape, None)

    def text(self) -> asyncio.Task[str]:
        """The metrics, which are being made, or were lately."""
        making = self._making
        if making is None or (making.done() and monotonic() - self._made_at > limits.SCRAPE_REUSE_SECONDS):
            self._made_at = monotonic()
            making = self._making = self._core.loop.create_task(exposition(self._core))
        return making

    def problem(self) -> str | None:
        """Why the server does not serve; None: it does. That it answers at all says that its loop goes on."""
        core = self._core
        if core.failure is not None:
            return core.failure
        if core.ending:
            return "the server ends"
        since = core.writer.busy_since
        if since is not None and monotonic() - since > limits.HEALTH_STALL_SECONDS:
            return f"no write has ended for {monotonic() - since:.0f} s"
        return None


class _Scrape(asyncio.Protocol):
    """One connection."""

    def __init__(self, listener: ScrapeListener) -> None:
        self._listener = listener
        self._received = b""
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._timer = asyncio.get_running_loop().call_later(limits.SCRAPE_SECONDS, self.abort)
        self._listener.joined(self)

    def connection_lost(self, error: BaseException | None) -> None:
        self._timer.cancel()
        self._listener.left(self)

    def abort(self) -> None:
        """End the connection at once."""
        self._listener.left(self)
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > limits.SCRAPE_BYTES_MAX:
            self.abort()
        elif b"\r\n\r\n" in self._received:
            self._transport.pause_reading()
            self._answer(*_method_and_path(self._received))

    def _answer(self, method: str, path: str) -> None:
        if not method:
            self._reply(400, "this is not an HTTP request\n")
        elif method not in ("GET", "HEAD"):
            self._reply(405, "only GET is possible\n")
        elif path == "/metrics":
            self._listener.text().add_done_callback(self._made)
        elif path == "/healthz":
            problem = self._listener.problem()
            self._reply(200 if problem is None else 503, f"{problem or 'ok'}\n")
        else:
            self._reply(404, "there are /metrics and /healthz\n")

    def _made(self, made: asyncio.Task[str]) -> None:
        if made.cancelled() or self._transport.is_closing():
            return
        error = made.exception()
        if error is None:
            self._reply(200, made.result(), CONTENT_TYPE)
            return
        log_failure("the metrics could not be made", error)
        self._reply(500, "the metrics could not be made; the log says why\n")

    def _reply(self, status: int, text: str, kind: str = _PLAIN) -> None:
        body = text.encode()
        allow = "Allow: GET, HEAD\r\n" if status == 405 else ""
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            f"{allow}Connection: close\r\n\r\n"
        )
        is_head = self._received.startswith(b"HEAD ")
        self._transport.write(head.encode() if is_head else head.encode() + body)
        self._transport.close()  # when all is sent


def _method_and_path(head: bytes) -> tuple[str, str]:
    """Parse a request line; empty words for what is none."""
    words = head.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return "", ""
    return words[0].decode("latin-1"), words[1].decode("latin-1").partition("?")[0]
