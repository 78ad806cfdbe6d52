"""Hold a server's writes: they queue, as they do while its loop is busy."""

from __future__ import annotations

from collections.abc import Callable

import headrace


def hold_the_writer(server: headrace.Server) -> Callable[[], None]:
    """Keep the server's loop from running writes until the returned function is called."""
    core = server._running
    flush = core.writer._flush
    core.writer._flush = lambda: None  # type: ignore[method-assign]

    def go_on() -> None:
        core.writer._flush = flush  # type: ignore[method-assign]
        if core.writer._scheduled:
            flush()

    def release() -> None:
        core.loop.call_soon_threadsafe(go_on)

    return release
