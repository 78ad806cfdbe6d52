"""A server on another machine, read by a backup or a standby with the command `headraceBackup`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from pymongo.errors import ConnectionFailure, OperationFailure

from headrace.backup.archive import SNAPSHOT_PIECE_BYTES, Entry, checksum
from headrace.backup.replay import DivergedHistory
from headrace.backup.source import NO_ENTRIES, Copy, Look, NoOplog
from headrace.values.position import from_key, from_timestamp, to_timestamp

if TYPE_CHECKING:
    from pymongo import MongoClient

_TRIES: Final = 6
"""How often a piece of a snapshot is requested if the connection breaks."""
_POSITION_BYTES: Final = 8
_NUMBER: Final = re.compile(r"\[Errno \d+\] ")


class ServerGone(OSError):
    """The server cannot be reached, or was restarted. The caller may try again."""


class RemoteSource:
    """A server, read through a client. Raises `ServerGone`, `NoOplog` and pymongo's `OperationFailure`."""

    def __init__(self, client: MongoClient[Any], name: str) -> None:
        """`name`: the server's name for users, without a password."""
        self.name = name
        self._client = client

    def _run(self, **fields: Any) -> dict[str, Any]:
        try:
            return self._client.admin.command({"headraceBackup": 1, **fields})
        except ConnectionFailure as error:
            reason = _NUMBER.sub("", str(error).partition(" (configured")[0])
            raise ServerGone(f"{self.name} cannot be reached: {reason}") from error
        except OperationFailure as error:
            if error.code == 43:
                raise ServerGone(f"{self.name} has ended the snapshot") from error
            if error.code == 59:
                raise NoOplog(f"{self.name} is no server of Headrace, or one of an earlier version") from error
            if error.code == 76:
                raise NoOplog(f"{self.name} has no oplog, which a backup goes by") from error
            raise

    def look(self, after: int) -> Look:
        """Return the state of the oplog as `Source.look` does, with 4 MB of entries."""
        found = self._run(after=to_timestamp(after))
        entries = list(_entries(found["entries"]))
        return Look(found["history"], from_timestamp(found["newest"]), found["before"], entries)

    @contextmanager
    def copied(self) -> Iterator[Copy]:
        """Open a copy as `Source.copied` does. The server makes the copy, and sends it piece by piece."""
        number = self._run(snapshot=0)["snapshot"]
        try:
            first = self._piece(number, 0)
            while "data" not in first:
                first = self._piece(number, 0)
            newest = from_timestamp(first["newest"])
            yield Copy(first["history"], newest, first["newestChecksum"], self._pieces(number, first))
        finally:
            with suppress(ServerGone):
                self._run(snapshot=number, end=True)

    def _piece(self, number: int, offset: int) -> dict[str, Any]:
        for _ in range(_TRIES - 1):
            with suppress(ServerGone):
                return self._run(snapshot=number, offset=offset)
        return self._run(snapshot=number, offset=offset)

    def _pieces(self, number: int, first: dict[str, Any]) -> Iterator[bytes]:
        size, done, data = first["size"], len(first["data"]), first["data"]
        while done < size:
            while len(data) < SNAPSHOT_PIECE_BYTES and done < size:
                more = self._piece(number, done)["data"]
                data, done = data + more, done + len(more)
            yield data[:SNAPSHOT_PIECE_BYTES]
            data = data[SNAPSHOT_PIECE_BYTES:]
        if data:
            yield data


class FollowedServer:
    """A server that a standby follows; implements `Followed`."""

    def __init__(self, source: RemoteSource) -> None:
        self._source = source

    def __str__(self) -> str:
        return self._source.name

    def history(self) -> bytes:
        """Return the id of the server's history."""
        return self._source.look(NO_ENTRIES).history

    def new_entries(self, after: int, after_checksum: int) -> Iterator[Entry]:
        """Yield the entries after a position up to the newest one at the first read.

        `after_checksum`: the checksum of the entry at `after`. Raises `DivergedHistory` if the server has another entry
        there or has pruned it.
        """
        newest = None
        while newest is None or after < newest:
            look = self._source.look(after)
            if look.before is None and look.newest > after:
                raise DivergedHistory(
                    f"{self} has pruned what follows {after:016x}, or has another history: remove the standby's "
                    "directory, and begin anew"
                )
            if look.before != after_checksum:
                raise DivergedHistory(f"{self} has another history than the standby, which ends at {after:016x}")
            newest = newest or look.newest
            for position, entry in look.entries:
                yield position, entry
                after, after_checksum = position, checksum(entry)


def _entries(data: bytes) -> Iterator[Entry]:
    at = 0
    while at < len(data):
        start = at + _POSITION_BYTES
        end = start + int.from_bytes(data[start : start + 4], "little")
        yield from_key(data[at:start]), data[start:end]
        at = end
