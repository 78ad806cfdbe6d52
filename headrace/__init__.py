"""Headrace: a MongoDB-compatible document store with complete change streams, and a Spark pipeline over them.

    with headrace.Server() as server:      # a server in this process; see `headrace.server.embedded`
        ...

`import headrace` imports neither the server nor Spark; both come when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["DirectoryInUse", "Server", "UnusableDirectory", "__version__"]

if TYPE_CHECKING:
    from headrace.server.embedded import Server
    from headrace.store.data_file import UnusableDirectory
    from headrace.store.lmdb import DirectoryInUse


def __getattr__(name: str) -> Any:
    if name == "Server":
        from headrace.server.embedded import Server

        return Server
    if name == "DirectoryInUse":
        from headrace.store.lmdb import DirectoryInUse

        return DirectoryInUse
    if name == "UnusableDirectory":
        from headrace.store.data_file import UnusableDirectory

        return UnusableDirectory
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
