"""`headrace.open`: a data directory opened in this process, with the methods of a `pymongo.MongoClient`.

with headrace.open("data") as store:
    store["shop"]["orders"].insert_one({"item": "pen"})
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from bson.codec_options import DEFAULT_CODEC_OPTIONS

from headrace.clock import Clock
from headrace.dispatch.options import OPTION_NAMES
from headrace.embedded.calls import CallOptions, Calls, Closing, database_name, options_of
from headrace.embedded.cursor import EmbeddedCommandCursor
from headrace.embedded.database import EmbeddedDatabase
from headrace.embedded.jobs import Jobs
from headrace.embedded.local_engine import LocalEngine
from headrace.keywords import check_keywords, keywords_of

if TYPE_CHECKING:
    from headrace.dispatch.options import TlsOptions
    from headrace.embedded.change_stream import EmbeddedChangeStream
    from headrace.embedded.serving import ServedStore
    from headrace.embedded.session import EmbeddedSession


def open_store(
    path: str | os.PathLike[str] | None = None, *, oplog: bool = True, codec_options: Any = None,
    read_concern: Any = None, write_concern: Any = None, clock: Clock | None = None, **options: Any,
) -> EmbeddedStore:  # fmt: skip
    """Open a data directory in this process.

    Acknowledged writes survive a crash of the process and of the machine, except those of a temporary directory.

    Args:
        path: The data directory, created if missing. For None or ":memory:" a temporary one, which `close` removes.
        oplog: False opens a store without change streams and transactions.
        codec_options: bson's `CodecOptions`, which convert documents to Python values.
        read_concern, write_concern: pymongo's `ReadConcern` and `WriteConcern`.
        clock: The source of time, for tests; the system's by default.
        options: Fields of `ServerOptions`, such as `oplog_hours`, `oplog_bytes_max` and `memory_bytes_max`.

    Raises:
        DirectoryInUse: Another process has the directory open. Connect to that process's server instead.
        UnusableDirectory: The data file is damaged, belongs to another program, or cannot be written.
    """
    check_keywords("open", options, OPEN_KEYWORDS)
    directory = None if path is None or os.fspath(path) == ":memory:" else path
    return EmbeddedStore(
        LocalEngine(directory, oplog=oplog, clock=clock, **options), codec_options, read_concern, write_concern
    )


OPEN_KEYWORDS: Final = OPTION_NAMES | keywords_of(open_store)


class EmbeddedStore(CallOptions, Closing):
    """An open data directory. Many threads may use it; a forked child must open its own."""

    def __init__(self, local: LocalEngine, codec_options: Any, read_concern: Any, write_concern: Any) -> None:
        self._local = local
        self._calls = Calls(local, codec_options or DEFAULT_CODEC_OPTIONS, read_concern, write_concern, self)
        self._jobs = Jobs(local)
        self._end = weakref.finalize(self, _close, self._jobs, local)  # which also runs as the interpreter ends

    @property
    def path(self) -> str:
        """The data directory."""
        return str(self._local.store.environment.path)

    @property
    def is_open(self) -> bool:
        """Whether the store is open."""
        return self._local.unusable is None

    def get_database(
        self, name: str, codec_options: Any = None, read_preference: Any = None, write_concern: Any = None,
        read_concern: Any = None,
    ) -> EmbeddedDatabase:  # fmt: skip
        """Return a database with its own options."""
        return EmbeddedDatabase(self, name, self._calls.changed(codec_options, read_concern, write_concern))

    def __getitem__(self, name: str) -> EmbeddedDatabase:
        return EmbeddedDatabase(self, name, self._calls)

    def __getattr__(self, name: str) -> EmbeddedDatabase:
        if name.startswith("_") or name in NOT_THERE:
            raise AttributeError(f"an embedded store has no {name!r}; see docs/embedding.md")
        return self[name]

    def __repr__(self) -> str:
        return f"<store {self.path}{'' if self.is_open else ', closed'}>"

    def list_databases(
        self, session: EmbeddedSession | None = None, comment: Any = None, **kwargs: Any
    ) -> EmbeddedCommandCursor:
        """Return a cursor on the descriptions of databases."""
        body = {"listDatabases": 1, **options_of(comment=comment, **kwargs)}
        cursor = EmbeddedCommandCursor(self._calls, "admin", {}, session)
        cursor.cursor_id = 0
        cursor._documents.extend(self._calls.run("admin", body, session)["databases"])
        return cursor

    def list_database_names(self, session: EmbeddedSession | None = None, comment: Any = None) -> list[str]:
        """Return the names of databases."""
        return [item["name"] for item in self.list_databases(session, comment, nameOnly=True)]

    def drop_database(
        self, name_or_database: str | EmbeddedDatabase, session: EmbeddedSession | None = None, comment: Any = None
    ) -> None:
        """Drop a database with all its collections."""
        given = name_or_database
        name = given.name if isinstance(given, EmbeddedDatabase) else database_name(given, "name_or_database")
        self._calls.write(name, {"dropDatabase": 1, **options_of(comment=comment)}, session)

    def server_info(self, session: EmbeddedSession | None = None) -> dict[str, Any]:
        """Return the reply of `buildInfo`."""
        return self._calls.run("admin", {"buildInfo": 1}, session)

    def start_session(
        self, causal_consistency: bool | None = None, default_transaction_options: Any = None,
        snapshot: bool | None = False,
    ) -> EmbeddedSession:  # fmt: skip
        """Start a session, for transactions and snapshot reads. All reads are causally consistent."""
        from headrace.embedded.session import EmbeddedSession

        if snapshot and causal_consistency:
            from pymongo.errors import ConfigurationError

            raise ConfigurationError("snapshot reads do not support causal_consistency=True")
        return EmbeddedSession(self._calls, default_transaction_options, snapshot=bool(snapshot))

    def watch(
        self, pipeline: Sequence[Mapping[str, Any]] | None = None, full_document: str | None = None,
        resume_after: Mapping[str, Any] | None = None, **kwargs: Any,
    ) -> EmbeddedChangeStream:  # fmt: skip
        """Open a change stream on all databases; `EmbeddedChangeStream` documents the arguments."""
        from headrace.embedded.change_stream import STREAM_KEYWORDS, EmbeddedChangeStream

        check_keywords("watch", kwargs, STREAM_KEYWORDS)
        return EmbeddedChangeStream(
            self._calls, "admin", None, pipeline, full_document=full_document, resume_after=resume_after,
            everything=True, **kwargs,
        )  # fmt: skip

    def serve(
        self, port: int = 0, *, host: str | None = "127.0.0.1", users: Mapping[str, Mapping[str, Any]] | None = None,
        tls: TlsOptions | str | os.PathLike[str] | None = None, **options: Any,
    ) -> ServedStore:  # fmt: skip
        """Serve the store to other processes while this process uses it: `with store.serve() as served: served.uri`.

        Args:
            port: The TCP port; 0 picks a free one.
            host: The address to listen on. An address that other machines can reach needs `users`, `auth` or
                `allow_unauthenticated`. None listens on no address; then `unix_socket_prefix` must name a folder.
            users: Users to create in the database `admin`, by name, each with the fields of `createUser`, such as
                `{"ann": {"pwd": "secret", "roles": ["read"]}}`. Clients must then log in; the program itself need
                not. The users stay in the store.
            tls: `TlsOptions`, or a folder that `headrace tls dev` made. Clients must then use TLS.
            options: Fields of `ServerOptions`, such as `auth` and `unix_socket_prefix`.

        Raises:
            RuntimeError: The store is served already.
            TlsError: The certificates cannot be used.
            UnprotectedAddress: Other machines could reach the store without authentication.
            OperationFailure: A user cannot be created.
            OSError: The address cannot be bound.
        """
        from headrace.embedded.serving import ServedStore

        check_keywords("serve", options, OPTION_NAMES | keywords_of(EmbeddedStore.serve))
        return ServedStore(self._local, host, port, users, {**options, **({} if tls is None else {"tls": tls})})

    def prune(self, now_ms: int | None = None) -> int:
        """Prune the oplog to its limits at `now_ms` (wall clock; None: now); return the number of removed entries."""
        return self._jobs.prune(now_ms)

    def close(self) -> None:
        """End streams and waiting calls, finish the write that is being committed, and close the directory.

        A second call has no effect. The interpreter's exit closes the store as well.
        """
        self._end()


NOT_THERE = frozenset({
    "HOST", "PORT", "address", "append_metadata", "arbiters", "bulk_write", "get_default_database", "is_mongos",
    "is_primary", "nodes", "options", "primary", "read_preference", "secondaries", "topology_description",
})  # fmt: skip
"""Attributes of pymongo's clients that an `EmbeddedStore` does not have."""


def _close(jobs: Jobs, local: LocalEngine) -> None:
    if local.is_forked:
        return
    jobs.stop()
    if local.served is not None:
        local.served.close()
    local.close()
