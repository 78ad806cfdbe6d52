"""`headrace.Server`: a server inside a Python process, on its own thread.

    with headrace.Server() as server:
        client = pymongo.MongoClient(server.uri)

Without a path its data is in a temporary directory, which `close` removes.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote_plus

from headrace.clock import Clock
from headrace.commands.users.changing_users import create_user
from headrace.dispatch.options import OPTION_NAMES, ServerOptions, TlsOptions
from headrace.keywords import check_keywords, keywords_of
from headrace.server.core import Core


def host_and_port(core: Core) -> str:
    """Return the first address that the server was told to listen on, as drivers write it."""
    host = core.options.bind_ips[0]
    return f"[{host}]:{core.port}" if ":" in host else f"{host}:{core.port}"


def unix_socket(core: Core) -> str:
    """Return the path of the server's Unix socket."""
    return next(address for address in core.addresses if address.startswith("/"))


def uri_of(core: Core) -> str:
    """Return the connection string for any driver. With TLS it names the authorities that the server itself trusts."""
    options = core.options
    if not options.bind_ips:
        return f"mongodb://{quote_plus(unix_socket(core))}/?directConnection=true"
    words = [f"replicaSet={options.replica_set}"] if options.oplog else []
    if options.tls is not None:
        words.append("tls=true")
        if options.tls.ca_file is not None:
            words.append(f"tlsCAFile={quote_plus(str(options.tls.ca_file))}")
    return f"mongodb://{host_and_port(core)}/{'?' if words else ''}{'&'.join(words)}"


def tls_options(tls: TlsOptions | str | os.PathLike[str] | None) -> TlsOptions | None:
    """Return the TLS options. A folder is one that `headrace tls dev` has made."""
    if tls is None or isinstance(tls, TlsOptions):
        return tls
    folder = Path(tls).absolute()
    return TlsOptions(folder / "server.pem", ca_file=folder / "ca.pem", allow_connections_without_certificates=True)


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop: uvloop's if it is installed, otherwise asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class Server:
    """A Headrace server in this process, on a thread of its own. A context manager, or used with `start` and `close`.

    Acknowledged writes survive a crash of the process and of the machine, except those of a temporary directory.

    Args:
        path: The data directory, created if missing. None or ":memory:": a temporary one, removed by `close`.
        host: The address to listen on; None for none, where `unix_socket_prefix` names a folder.
        port: The TCP port; 0 picks a free one.
        oplog: False makes it a standalone without change streams.
        users: Users to create, by name in the database `admin`: each the fields of `createUser`, such as
            `{"ann": {"pwd": "secret", "roles": ["root"]}}`. With them, access control is enabled.
        clock: The source of time, for tests; the system's by default.
        tls: `TlsOptions`, or the folder that `headrace tls dev` made: clients speak TLS then, and need no certificate.
        options: Fields of `ServerOptions`, such as `oplog_hours`, `oplog_bytes_max`, `oplog_entries_max` and
            `memory_bytes_max`.

    Raises:
        TlsError: The certificates cannot be used (when the server starts).
        UnprotectedAddress: Other machines would reach it, and no client has to log in (when the server starts).
        DirectoryInUse: Another process has the directory open (when the server starts).
        UnusableDirectory: Its file is damaged or of another program, or cannot be written (when the server starts).
        OSError: The address cannot be bound (when the server starts).
        CommandError: A user cannot be created (when the server starts).
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, host: str | None = "127.0.0.1", port: int = 0,
        oplog: bool = True, users: Mapping[str, Mapping[str, Any]] | None = None, clock: Clock | None = None,
        tls: TlsOptions | str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        check_keywords("Server", options, OPTION_NAMES | keywords_of(Server.__init__))
        self._throw_away = path is None or path == ":memory:"
        dbpath = Path(os.devnull) if self._throw_away or path is None else Path(path)
        self._users = users or {}
        options = {"auth": users is not None, **options}
        self.options = ServerOptions(
            dbpath=dbpath,
            bind_ips=() if host is None else (host,),
            port=port,
            oplog=oplog,
            tls=tls_options(tls),
            **options,
        )
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._core: Core | None = None
        self._failure: BaseException | None = None

    @property
    def address(self) -> str:
        """The address as `host:port`."""
        return host_and_port(self._running)

    @property
    def unix_socket(self) -> str:
        """The path of its Unix socket, if `unix_socket_prefix` is given."""
        return unix_socket(self._running)

    @property
    def uri(self) -> str:
        """The connection string for any driver. With TLS it names the authorities that the server itself trusts."""
        return uri_of(self._running)

    @property
    def failure(self) -> str | None:
        """Why the server has stopped by itself (its data file can no longer be written); None while it serves."""
        return self._running.failure

    @property
    def _running(self) -> Core:
        if self._core is None:
            raise RuntimeError("the server is not running; use it in a `with`, or call start()")
        return self._core

    def start(self) -> Server:
        """Open the store and listen. Returns when clients can connect."""
        if self._core is not None:
            raise RuntimeError("the server is running already")
        ready = threading.Event()
        self._failure = None
        self._thread = threading.Thread(target=self._run, args=(ready,), name="headrace", daemon=True)
        self._thread.start()
        ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def close(self) -> None:
        """Finish the writes that were received, and stop. Remove a temporary data directory."""
        if self._core is None or self._loop is None or self._thread is None:
            return
        core, self._core = self._core, None
        asyncio.run_coroutine_threadsafe(core.stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def prune(self, now_ms: int | None = None) -> int:
        """Prune the oplog to its limits as of `now_ms` (wall clock in ms; None: now); return the number of removed
        entries."""
        core = self._running
        assert self._loop is not None
        moment = core.engine.clock.now_ms() if now_ms is None else now_ms
        return asyncio.run_coroutine_threadsafe(core.background.prune(moment), self._loop).result()

    def _run(self, ready: threading.Event) -> None:
        loop = self._loop = new_loop()
        try:
            self._core = loop.run_until_complete(self._start())
        except BaseException as error:
            self._failure = error
            loop.close()
            ready.set()
            return
        ready.set()
        loop.run_forever()
        loop.close()

    async def _start(self) -> Core:
        core = Core(self.options, throw_away=self._throw_away, clock=self._clock)
        try:
            for name, fields in self._users.items():
                create_user(core.engine, name, "admin", fields)
        except BaseException:
            await core.stop()
            raise
        await core.start()
        return core

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
