"""The gate before the console's pages, which stops requests of other sites and other machines.

Rules:
- `Host` must be a loopback name with the console's port. This stops DNS rebinding: another site's name that resolves
  to 127.0.0.1.
- `Origin` and `Sec-Fetch-Site`, if a browser sends them, must be the page's own.
- A request without the session's cookie gets nothing, not even a static file. The address with the token sets the
  cookie.
- A body has at most `BODY_BYTES_MAX` bytes, whether its length is announced or not.
- Every response, also an error, has `HEADERS`: no inline script or style, no frame, no other source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES_MAX: Final = 16 * 1024
HOST_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
ENTRANCE: Final = "/"
"""The only path that needs no cookie: it sets the cookie for the token, or says how to get one."""


class Gate:
    """ASGI middleware around the application; `is_session` tells whether a cookie's value names a session."""

    def __init__(self, application: ASGIApp, *, port: int, cookie: str, is_session: Callable[[str], bool]) -> None:
        self._application = application
        self._hosts = {f"{name}:{port}" for name in HOST_NAMES}
        self._cookie = cookie
        self._is_session = is_session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        await self._application(scope, _bounded(receive), send_with_headers)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if host not in self._hosts or len(headers.getlist("host")) != 1:
            return PlainTextResponse("this is not a name of the console", 421)
        if headers.get("origin", f"http://{host}") != f"http://{host}":
            return PlainTextResponse("another origin may not ask", 403)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return PlainTextResponse("another site may not ask", 403)
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("there is no such method here", 405)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
            return PlainTextResponse("the body is too large", 413)
        session = cookie_parser(headers.get("cookie", "")).get(self._cookie, "")
        if scope["path"] != ENTRANCE and not self._is_session(session):
            return PlainTextResponse("open the address that `headrace console` has printed", 403)
        return None


def _bounded(receive: Receive) -> Receive:
    received = 0

    async def receive_bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > BODY_BYTES_MAX:
            raise HTTPException(413, "the body is too large")
        return message

    return receive_bounded
