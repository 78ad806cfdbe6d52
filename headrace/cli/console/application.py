"""The console's HTTP server and its routes: the page, its static files, its data as JSON or server-sent events.

uvicorn serves them on one socket of the loopback address. The gate before the pages stops requests of other sites and
other machines. Its rules:

- `Host` must be a loopback name with the console's port. This stops DNS rebinding: another site's name that resolves
  to 127.0.0.1.
- `Origin` and `Sec-Fetch-Site`, if a browser sends them, must be the page's own.
- A request without the session's cookie gets nothing, not even a static file. The address with the token sets the
  cookie.
- A body has at most `BODY_BYTES_MAX` bytes, whether its length is announced or not.
- Every response, also an error, has `HEADERS`: no inline script or style, no frame, no other source.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvicorn
from pymongo.errors import InvalidName, OperationFailure, PyMongoError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request, cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.cli.arguments import Failed
from headrace.cli.connection import failure
from headrace.cli.console.broadcast import MessageReader, event_text
from headrace.cli.console.collections import collection_of, collections_of, documents_of, explained, slow_queries
from headrace.cli.console.sessions import ServerConnection, Sessions
from headrace.cli.console.tailing import TailQuery
from headrace.cli.monitoring.oplog import report_of
from headrace.cli.monitoring.status import UNAUTHORIZED
from headrace.errors import reason_of
from headrace.spark.errors import OptionError

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


STATIC: Final = Path(__file__).parent / "static"
_TYPES: Final = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}
_CACHED_SECONDS: Final = 1.0
_JOBS_SECONDS: Final = 5.0
_OPLOG_SECONDS: Final = 15.0
"""How long an oplog report is cached; it reads 10,000 entries."""
_SCOPE_MAX: Final = 300
"""Characters of a namespace; MongoDB's have at most 255 bytes."""


class ConsoleApplication:
    """The ASGI application of one console."""

    def __init__(self, sessions: Sessions, *, port: int, jobs: Sequence[Path] = (), writes: bool = False) -> None:
        """With `writes`, pipelines of the query box may end with `$out` or `$merge`."""
        self._sessions = sessions
        self._files = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.suffix in _TYPES}
        self.cookie = f"headrace_console_{port}"  # all ports of a host share its cookies
        routes = [
            Route("/", self._page),
            Route("/static/{name}", self._static),
            Route("/api/session", self._session),
            Route("/api/sign-in", self._sign_in, methods=["POST"]),
            Route("/api/sign-out", self._sign_out, methods=["POST"]),
            Route("/api/live", self._live),
            Route("/api/tail", self._tail),
            Route("/api/collections", self._answer(collections_of, ())),
            Route("/api/collection", self._answer(collection_of, ("ns",))),
            Route("/api/documents", self._query(partial(documents_of, writes=writes))),
            Route("/api/explain", self._query(explained)),
            Route("/api/oplog", self._answer(lambda client: report_of(client).document(), (), _OPLOG_SECONDS)),
            Route("/api/slow", self._answer(slow_queries, ())),
            Route("/api/jobs", self._answer(lambda client: {"jobs": list(map(_job_report, jobs))}, (), _JOBS_SECONDS)),
        ]
        handlers: Any = {Failed: _refuse, HTTPException: _http_error, PyMongoError: _refuse}
        self.asgi = Gate(
            Starlette(routes=routes, exception_handlers=handlers),
            port=port, cookie=self.cookie, is_session=sessions.is_session,
        )  # fmt: skip

    def _connection(self, request: Request) -> ServerConnection:
        return self._sessions.connection(request.cookies[self.cookie])

    async def _page(self, request: Request) -> Response:
        token = request.query_params.get("token")
        if token is not None:
            session = self._sessions.begin(token)
            if session is None:
                return PlainTextResponse("the token is not that of this console", 403)
            response = RedirectResponse("/", 303)
            response.set_cookie(self.cookie, session, httponly=True, samesite="strict", path="/")
            return response
        if not self._sessions.is_session(request.cookies.get(self.cookie, "")):
            return PlainTextResponse("open the address that `headrace console` has printed", 403)
        return Response(self._files["index.html"], media_type="text/html")

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._files:
            raise HTTPException(404, "there is no such file")
        return Response(self._files[name], media_type=_TYPES[Path(name).suffix])

    async def _session(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(_session_of, self._connection(request)))

    async def _sign_in(self, request: Request) -> Response:
        credentials = await _credentials(request)
        connection = await run_in_threadpool(self._sessions.connect, **credentials)
        try:
            await run_in_threadpool(connection.client.admin.command, "ping")
        except BaseException:
            connection.close()
            raise
        self._sessions.sign_in(request.cookies[self.cookie], credentials, connection)
        return JSONResponse(await run_in_threadpool(_session_of, self._connection(request)))

    async def _sign_out(self, request: Request) -> Response:
        self._sessions.sign_out(request.cookies[self.cookie])
        return JSONResponse({})

    async def _live(self, request: Request) -> Response:
        sampler = self._connection(request).sampler
        messages = sampler.log.read()  # first, so that no message falls between
        return self._stream(request, messages, event_text("history", sampler.history()))

    async def _tail(self, request: Request) -> Response:
        connection = self._connection(request)
        query = TailQuery(*(request.query_params.get(name, "").strip() for name in ("ns", "filter", "from")))
        if len(query.namespace) > _SCOPE_MAX:
            raise Failed("the namespace is too long")
        stream, messages = connection.tails.read(query)
        return self._stream(request, messages, event_text("opened", {}) if stream.is_open else b": open\n\n")

    def _stream(self, request: Request, messages: MessageReader, first: bytes) -> Response:
        session = request.cookies[self.cookie]

        async def texts() -> AsyncIterator[bytes]:
            async with aclosing(messages):
                with self._sessions.streaming(session):
                    yield first
                    async for text in messages:
                        yield text

        return StreamingResponse(texts(), media_type="text/event-stream")

    def _answer(
        self, ask: Callable[..., Any], names: tuple[str, ...], seconds: float = _CACHED_SECONDS
    ) -> Callable[[Request], Any]:
        """Return a route that calls `ask` with the client and the named parameters, and caches its answer."""

        async def route(request: Request) -> Response:
            connection = self._connection(request)
            words = [request.query_params.get(name, "") for name in names]
            key = (request.url.path, *words)
            return JSONResponse(
                await run_in_threadpool(connection.cached, key, seconds, lambda: ask(connection.client, *words))
            )

        return route

    def _query(self, ask: Callable[..., Any]) -> Callable[[Request], Any]:
        """Return a route that calls `ask` with the client and all parameters."""

        async def route(request: Request) -> Response:
            connection = self._connection(request)
            return JSONResponse(await run_in_threadpool(ask, connection.client, dict(request.query_params)))

        return route


def _job_report(path: Path) -> dict[str, Any]:
    """Return the status of a job as `headrace pipeline status --json` prints it, or an error."""
    try:
        from headrace.spark.errors import error_line
        from headrace.spark.jobs.job_file import read_job
        from headrace.spark.jobs.status import job_status
    except ImportError as error:
        return {
            "file": path.name,
            "error": f"the pipeline is not installed: pip install 'headrace[spark]' ({error})",
        }
    try:
        return {"file": path.name, **job_status(read_job(path)).document()}
    except Exception as error:  # the file, the tables or the servers of the job: the page shows the reason
        return {"file": path.name, "error": error_line(error)}


def _session_of(connection: ServerConnection) -> dict[str, Any]:
    """Return the server of a session, the session's user, and whether the server requires a user."""
    client = connection.client
    hello = client.admin.command("hello")
    users = client.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
    wants_user = False
    if not users:
        try:
            client.admin.command("listDatabases", nameOnly=True)
        except OperationFailure as error:
            if error.code != UNAUTHORIZED:
                raise
            wants_user = True
    build = {} if wants_user else client.admin.command("buildInfo")
    host, port = client.address or ("", "")
    return {
        "server": hello.get("me") or (f"{host}:{port}" if port else host), "version": build.get("version", ""),
        "replicaSet": hello.get("setName", ""), "user": users[0]["user"] if users else "", "wantsUser": wants_user,
    }  # fmt: skip


async def _credentials(request: Request) -> dict[str, str]:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "the body must be JSON")
    try:
        body = json.loads(await request.body())
        found = {
            name: body[field] for name, field in
            (("username", "user"), ("password", "password"), ("authSource", "database"))
        }  # fmt: skip
    except (ValueError, TypeError, KeyError):
        raise HTTPException(400, "user, password and database are wanted") from None
    if not all(isinstance(word, str) and word for word in found.values()):
        raise Failed("a user and a password are wanted")
    return found


async def _refuse(request: Request, error: Exception) -> Response:
    """Answer an error with one line and never a traceback."""
    code = error.code if isinstance(error, OperationFailure) else None
    reason = str(error if isinstance(error, Failed) else failure(error))
    is_refused = isinstance(error, Failed | OperationFailure | InvalidName)
    return JSONResponse({"error": reason, "code": code}, 400 if is_refused else 502)


async def _http_error(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code)


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
