"""`store.serve()`: a server of the same engine, so that other processes read and write while the program works.

The server's loop runs on its own thread and uses the engine like any other thread. It holds the engine's lock while it
runs callbacks and releases the lock while it waits for sockets. Its writer enters the same gate as the program's
writes. So the program's calls cost the same as without a server.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pymongo.errors import OperationFailure

from headrace.embedded.calls import Calls, Closing
from headrace.server.core import Core, Hosted
from headrace.server.server import tls_options, uri_of

if TYPE_CHECKING:
    from headrace.embedded.local_engine import LocalEngine


Users = Mapping[str, Mapping[str, Any]]
_USER_EXISTS: Final = 51003


class _Selector(selectors.DefaultSelector):
    """A selector that waits for sockets without the engine's lock."""

    def __init__(self, local: LocalEngine) -> None:
        super().__init__()
        self._local = local

    def select(self, timeout: float | None = None) -> Any:
        self._local.lock.release()
        try:
            if self._local.is_wanted:
                self._local.give_way()
            return super().select(timeout)
        finally:
            self._local.lock.acquire()


class _Loop(asyncio.SelectorEventLoop):
    """A loop whose callbacks other threads schedule under the engine's lock, as when a commit wakes watchers."""

    def __init__(self, local: LocalEngine) -> None:
        super().__init__(_Selector(local))
        self._owner = threading.get_ident()

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        if threading.get_ident() == self._owner:
            return super().call_soon(callback, *args, context=context)
        return self.call_soon_threadsafe(callback, *args, context=context)


class ServedStore(Closing):
    """A served store, a context manager."""

    def __init__(
        self, local: LocalEngine, host: str | None, port: int, users: Users | None, options: dict[str, Any]
    ) -> None:
        """Start to listen. Raises the errors of `EmbeddedStore.serve`."""
        self._local = local
        bind_ips = () if host is None else (host,)
        if users is not None:
            options = {"auth": True, **options}
        options["tls"] = tls_options(options.get("tls", local.options.tls))
        self.options = replace(local.options, bind_ips=bind_ips, port=port, **options)
        self._failure: BaseException | None = None
        self._core: Core | None = None
        ready = threading.Event()
        with local.serving:
            if local.core is not None:
                raise RuntimeError("the store is served already")
            for name, fields in (users or {}).items():
                self._create_user(name, fields)
            self._thread = threading.Thread(target=self._run, args=(ready,), name="headrace", daemon=True)
            self._thread.start()
            ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    @property
    def port(self) -> int:
        """The TCP port."""
        assert self._core is not None
        return self._core.port

    @property
    def uri(self) -> str:
        """The connection string for any driver, without a user; with TLS it names the file of authorities."""
        assert self._core is not None
        return uri_of(self._core)

    def close(self) -> None:
        """Finish the writes that clients have sent and close their connections. The store stays open."""
        with self._local.serving:
            core, self._core = self._core, None
            if core is None or self._local.core is not core:
                return
            asyncio.run_coroutine_threadsafe(core.stop(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _create_user(self, name: str, fields: Mapping[str, Any]) -> None:
        """Create a user, or set these fields of an existing user."""
        calls = Calls(self._local)
        try:
            calls.run("admin", {"createUser": name, **fields})
        except OperationFailure as error:
            if error.code != _USER_EXISTS:
                raise
            calls.run("admin", {"updateUser": name, **fields})

    def _run(self, ready: threading.Event) -> None:
        local = self._local
        try:
            local.enter()
        except BaseException as error:
            self._failure = error
            ready.set()
            return
        options = local.engine.options
        local.engine.options = self.options
        local.engine.set_authorization(self.options.auth)
        try:
            self._loop = _Loop(local)
            try:
                local.core = self._core = self._loop.run_until_complete(self._start())
                local.served = self
                ready.set()
                self._loop.run_forever()
            finally:
                local.core = local.served = None
                self._loop.close()
        except BaseException as error:
            self._failure = error
        finally:
            local.engine.options = options
            local.engine.set_authorization(options.auth)
            local.lock.release()
            ready.set()

    async def _start(self) -> Core:
        hosted = Hosted(self._local.engine, self._local.writes.gate)
        core = Core(self.options, throw_away=self._local.throw_away, failed=self._local.fail, hosted=hosted)
        await core.start()
        return core
