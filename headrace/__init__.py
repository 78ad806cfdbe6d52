"""Headrace: a MongoDB-compatible document store with complete change streams, and a Spark pipeline over them.

    with headrace.open("data") as store:   # a store in this process; see `headrace.embedded.open_store`
    with headrace.Server() as server:      # a server in this process; see `headrace.server.server`
        ...

`import headrace` imports neither the engine nor the server nor Spark. Each is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

__version__ = "0.1.0"

if TYPE_CHECKING:
    from headrace.embedded.asynchronous import open_async
    from headrace.embedded.change_event import ChangeEvent
    from headrace.embedded.connected import connect
    from headrace.embedded.error_types import Closed, HistoryLost, StreamInvalidated, Timeout
    from headrace.embedded.open_store import open_store as open
    from headrace.server.server import Server
    from headrace.store.data_file import UnusableDirectory
    from headrace.store.lmdb import DirectoryInUse

_LATE: Final = {
    "ChangeEvent": ("headrace.embedded.change_event", "ChangeEvent"),
    "Closed": ("headrace.embedded.error_types", "Closed"),
    "DirectoryInUse": ("headrace.store.lmdb", "DirectoryInUse"),
    "HistoryLost": ("headrace.embedded.error_types", "HistoryLost"),
    "Server": ("headrace.server.server", "Server"),
    "StreamInvalidated": ("headrace.embedded.error_types", "StreamInvalidated"),
    "Timeout": ("headrace.embedded.error_types", "Timeout"),
    "UnusableDirectory": ("headrace.store.data_file", "UnusableDirectory"),
    "connect": ("headrace.embedded.connected", "connect"),
    "open": ("headrace.embedded.open_store", "open_store"),
    "open_async": ("headrace.embedded.asynchronous", "open_async"),
}
"""(module, name) of the attributes that are imported when they are first used."""

__all__ = [
    "ChangeEvent", "Closed", "DirectoryInUse", "HistoryLost", "Server", "StreamInvalidated", "Timeout",
    "UnusableDirectory", "__version__", "connect", "open", "open_async",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    module, attribute = _LATE[name]
    value = globals()[name] = getattr(import_module(module), attribute)
    return value
