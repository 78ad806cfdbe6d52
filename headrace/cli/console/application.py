"""The routes of the console: the page, its static files, and its data as JSON or server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Final

from pymongo.errors import InvalidName, OperationFailure, PyMongoError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from headrace.cli.arguments import Failed
from headrace.cli.connection import failure
from headrace.cli.console.broadcast import MessageReader, event_text
from headrace.cli.console.collections import collection_of, collections_of, documents_of, explained
from headrace.cli.console.gate import Gate
from headrace.cli.console.sessions import ServerConnection, Sessions
from headrace.cli.console.slow_queries import slow_queries
from headrace.cli.console.tailing import TailQuery
from headrace.cli.monitoring.oplog import report_of
from headrace.cli.monitoring.status import UNAUTHORIZED

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
