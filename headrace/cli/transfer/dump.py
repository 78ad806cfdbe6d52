"""Write databases into a folder as mongodump does, with all collections as of one cluster time.

Rule: a document that a transaction moves from one collection to another is in exactly one of their files. All reads
have read concern `snapshot` at the time of the first read. The list of collections is read before and after this first
read, and the dump starts again if a collection was created, dropped or renamed in between. It also starts again when
the server no longer has the snapshot: after a drop, a rename, an index build, or the snapshot's time limit.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument
from pymongo.errors import ConfigurationError, OperationFailure

from headrace.changes.stream import INTERNAL_DATABASES
from headrace.cli.arguments import Failed
from headrace.cli.progress import progress
from headrace.cli.transfer import counted
from headrace.cli.transfer.formats import metadata_text
from headrace.errors import reason_of

if TYPE_CHECKING:
    from pymongo.client_session import ClientSession

    from headrace.cli.connection import Client


def raw_collection(client: Client, database: str, collection: str) -> Any:
    """Return the collection, with documents as raw BSON."""
    options: CodecOptions[Any] = CodecOptions(
        document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_AUTO, tz_aware=True
    )
    return client.get_database(database).get_collection(collection, options)


@contextmanager
def output(path: Path | None) -> Iterator[IO[bytes]]:
    """Yield a file to write, which replaces `path` when it is complete. Raises Failed."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(path)
    except OSError as error:
        raise Failed(f"{path} cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


_ATTEMPT_COUNT_MAX: Final = 5
_NO_SNAPSHOTS: Final = frozenset({20, 72, 123})
"""Error codes of a server without snapshot reads: a standalone, or a server without an oplog."""
SNAPSHOT_GONE: Final = frozenset({239, 246})
_WIRE_VERSION_OF_CAPPED: Final = 25
"""MongoDB 8.0, the first version that reads capped collections at a snapshot."""


class _Source(NamedTuple):
    """One collection or view of a dump."""

    database: str
    info: dict[str, Any]
    indexes: list[Any]

    @property
    def name(self) -> str:
        """The name within the database."""
        return str(self.info["name"])

    @property
    def is_view(self) -> bool:
        """Whether the source is a view, which stores no documents."""
        return bool(self.info["type"] == "view")


class _StartAgain(Exception):
    """Raised if the collections have changed since the snapshot; the text says how."""


def dump(client: Client, database: str, folder: Path, *, live: bool, documents: bool = True) -> None:
    """Write a database, or all databases (""), into a folder. Raises Failed, PyMongoError.

    With `live`, each collection is read as it is at its turn, without a snapshot. Without `documents`, only the
    collections' options and indexes are written.
    """
    if not documents:
        for source in _sources(client, [database] if database else _databases(client)):
            _describe(source, folder / _file_of(source))
            print(f"{source.database}.{source.name}")
        return
    for left in reversed(range(_ATTEMPT_COUNT_MAX)):
        written: list[Path] = []
        try:
            _dump(client, [database] if database else _databases(client), folder, live, written)
        except _StartAgain as error:
            reason = str(error)
        except OperationFailure as error:
            if error.code not in SNAPSHOT_GONE:
                raise
            reason = f"the server no longer has the snapshot ({(error.details or {}).get('errmsg') or error})"
        else:
            return
        for path in written:
            path.unlink(missing_ok=True)
        if left:
            print(f"the dump starts again: {reason}", file=sys.stderr)
    raise Failed(
        f"the databases cannot be read at one time, tried {_ATTEMPT_COUNT_MAX} times: {reason}. Try again when no "
        "collections or indexes are created or dropped; raise minSnapshotHistoryWindowInSeconds of a MongoDB server; "
        "or read the collections one after the other with --live"
    )


def _databases(client: Client) -> list[str]:
    return sorted(name for name in client.list_database_names() if name not in INTERNAL_DATABASES)


def _dump(client: Client, databases: Sequence[str], folder: Path, live: bool, written: list[Path]) -> None:
    """Try the dump once. Each file is added to `written` before it is written."""
    before = list(_sources(client, databases))
    first = next((source for source in before if not source.is_view), None)
    with snapshot_session(
        client, "" if first is None else first.database, first.name if first else "", live
    ) as session:
        sources = list(_sources(client, databases)) if session else before
        if _identities(sources) != _identities(before):
            raise _StartAgain("collections were created, dropped or renamed")
        for source in sources:
            count = _write(client, source, folder / _file_of(source), session, written)
            print(f"{counted(count)} of {source.database}.{source.name}")


def _sources(client: Client, databases: Sequence[str]) -> Iterator[_Source]:
    """Yield the collections and views of databases as they are now."""
    for database in databases:
        for info in client.get_database(database).list_collections():
            name = info["name"]
            if name.startswith("system.") and name != "system.js":
                continue
            indexes: list[Any] = []
            if info["type"] != "view":
                indexes = list(client.get_database(database).get_collection(name).list_indexes())
            yield _Source(database, dict(info), indexes)


def _identities(sources: Sequence[_Source]) -> set[tuple[str, str, str]]:
    """Return (database, name, UUID) of each source; a collection that was created again has another UUID."""
    return {(source.database, source.name, str(source.info.get("info", {}).get("uuid"))) for source in sources}


@contextlib.contextmanager
def snapshot_session(client: Client, database: str, collection: str, live: bool) -> Iterator[ClientSession | None]:
    """Yield a session whose reads all see the present state.

    Yield None with `live`, without a collection, and, with a line on stderr, if the server has no snapshot reads.
    """
    if live or not collection:
        yield None
        return
    with client.start_session(snapshot=True) as opened:
        session: ClientSession | None = opened
        try:  # the first read decides the time
            client.get_database(database).get_collection(collection).find_one({"_id": {"$in": []}}, session=session)
        except (ConfigurationError, OperationFailure) as error:
            if isinstance(error, OperationFailure) and error.code not in _NO_SNAPSHOTS:
                raise
            print("warning: the server reads no snapshots; what others write meanwhile may be in part", file=sys.stderr)
            session = None
        yield session


def _write(client: Client, source: _Source, path: Path, session: ClientSession | None, written: list[Path]) -> int:
    """Write the files of one collection; return the number of its documents."""
    written += [path.with_suffix(".metadata.json"), path]
    _describe(source, path)
    if source.is_view:
        return 0
    if session is not None and source.info.get("options", {}).get("capped") and not _reads_capped(client):
        print(f"warning: {source.database}.{source.name} is capped and read as it is now", file=sys.stderr)
        session = None
    count = 0
    collection = raw_collection(client, source.database, source.name)
    with output(path) as file, progress(f"{source.database}.{source.name}", None, "documents") as bar:
        if bar.is_shown:
            bar.set(0, collection.estimated_document_count())
        for document in collection.find(session=session):
            file.write(document.raw)
            count += 1
            bar.add(1)
    return count


def _file_of(source: _Source) -> Path:
    """Return mongodump's path of the documents, relative to the folder."""
    return Path(quote(source.database, safe="")) / f"{quote(source.name, safe='$&+=:@')}.bson"


def _describe(source: _Source, path: Path) -> None:
    """Write the options and indexes beside `path`. Raises Failed."""
    info = source.info
    metadata = {"options": info.get("options", {}), "indexes": source.indexes}
    if "uuid" in info.get("info", {}):
        metadata["uuid"] = bytes(getattr(info["info"]["uuid"], "bytes", info["info"]["uuid"])).hex()
    metadata |= {"collectionName": source.name, "type": info["type"]}
    described = path.with_suffix(".metadata.json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        described.write_text(metadata_text(metadata), "utf-8")
    except OSError as error:
        raise Failed(reason_of(error)) from None


def _reads_capped(client: Client) -> bool:
    """Return whether the server reads capped collections at a snapshot."""
    hello = client.admin.command("hello")
    return int(hello["maxWireVersion"]) >= _WIRE_VERSION_OF_CAPPED
