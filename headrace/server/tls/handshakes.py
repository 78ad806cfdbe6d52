"""Running TLS handshakes: their time limit, and the thread that computes them.

A handshake needs a private key's operation, which takes a millisecond or more, so it is not computed on the loop. A
client that does not finish within ten seconds is cut off.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from headrace import limits
from headrace.dispatch.options import TlsOptions
from headrace.log_lines import RepeatedLine
from headrace.server.tls.context import new_context

if TYPE_CHECKING:
    from headrace.server.tls.layer import TlsLayer


class Handshakes:
    """The shared state of a server's TLS connections: the context, and the running handshakes."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, options: TlsOptions, context: ssl.SSLContext, metrics: dict[str, int]
    ) -> None:
        """`metrics` counts the connections of each version, as `transportSecurity.TLSv1.3`."""
        self.options = options
        self.context = context
        self._metrics = metrics
        self._loop = loop
        self._pending: dict[TlsLayer, asyncio.TimerHandle] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-tls")
        self._failed = RepeatedLine()
        self._slow = RepeatedLine()
        self._plain = RepeatedLine()

    def rotate(self) -> None:
        """Read the files again, for later connections. Raises `TlsError` and then changes nothing."""
        self.context = new_context(self.options)

    # Called by layers.

    def begin(self, layer: TlsLayer) -> None:
        """Start the time limit of an accepted connection."""
        self._pending[layer] = self._loop.call_later(limits.HANDSHAKE_SECONDS, self._time_out, layer)

    def end(self, layer: TlsLayer) -> None:
        """End the time limit: the handshake or the connection is over."""
        timer = self._pending.pop(layer, None)
        if timer is not None:
            timer.cancel()

    def compute(self, step: Callable[[], bool], done: Callable[[bool | Exception], None]) -> None:
        """Call `step` in the thread, then `done` on the loop with the result or the exception."""

        def run() -> None:
            result: bool | Exception
            try:
                result = step()
            except Exception as error:
                result = error
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(done, result)

        self._thread.submit(run)

    def failed(self, layer: TlsLayer, error: Exception) -> None:
        """Log that a handshake has failed."""
        reason = getattr(error, "verify_message", None) or getattr(error, "reason", None) or error
        self._failed.log(f"the TLS handshake of {layer.address} failed: {reason}")

    def log_plain(self, layer: TlsLayer, *, refused: bool) -> None:
        """Log that a client does not use TLS on a TLS server."""
        if refused:
            self._plain.log(f"{layer.address} is cut off: the server is configured to only allow SSL connections")
        elif self.options.mode == "preferTLS":
            self._plain.log(f"SSL mode is set to 'preferred' and the connection of {layer.address} is not using SSL")

    def opened(self, session: ssl.SSLObject) -> None:
        """Count a connection by its TLS version."""
        name = f"transportSecurity.{session.version()}"
        self._metrics[name] = self._metrics.get(name, 0) + 1

    def _time_out(self, layer: TlsLayer) -> None:
        self._slow.log(f"{layer.address} is cut off: no TLS handshake within {limits.HANDSHAKE_SECONDS:g} s")
        self.end(layer)
        layer.abort()

    def close(self) -> None:
        """Cut off the connections whose handshake is not over."""
        for layer in list(self._pending):
            self.end(layer)
            layer.abort()
        self._thread.shutdown(wait=True, cancel_futures=True)
