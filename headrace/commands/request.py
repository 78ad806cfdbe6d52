"""One command as it came from a client, and the client it came from."""

from __future__ import annotations

from typing import Any

from headrace.values.bson import decode


class Peer:
    """What is known of the client at the other end of one socket; lives as long as the socket does."""

    __slots__ = (
        "address",
        "client",
        "compressors",
        "connection_id",
        "cut_off",
        "hello_done",
        "local_address",
    )

    def __init__(self, connection_id: int, address: str, local_address: tuple[str, int] | str) -> None:
        self.connection_id = connection_id
        self.address = address
        """The client's end as MongoDB writes it: `127.0.0.1:51234`, or `anonymous unix socket`."""
        self.local_address = local_address
        """Our end of the socket, which the client has reached: (host, port), or the path of a Unix socket."""
        self.client: dict[str, Any] | None = None
        """The `client` document of the first hello: driver, os, platform, application."""
        self.compressors: list[str] = []
        """The compressors agreed upon at hello, in the client's order."""
        self.hello_done = False
        self.cut_off = False
        """Set by a fail point: the connection ends instead of the next answer to a write."""

    @property
    def local_host(self) -> str:
        """Our end as drivers write an address: `host:port`, `[v6]:port`, or the path of the Unix socket."""
        if isinstance(self.local_address, str):
            return self.local_address
        host, port = self.local_address[0], self.local_address[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Request:
    """One command: decoded body, raw body, raw document sequences (`raw` and `sequences` are what came)."""

    __slots__ = (
        "_body",
        "cursor",
        "db",
        "deadline_ms",
        "name",
        "peer",
        "raw",
        "sequences",
        "since_ms",
        "time_is_up",
        "wait_until_ms",
    )

    def __init__(
        self,
        name: str,
        db: str,
        raw: bytes,
        sequences: dict[str, list[bytes]],
        peer: Peer,
        body: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        """The command's name as the client wrote it: the first key of the body."""
        self.db = db
        self.raw = raw
        self.sequences = sequences
        """Raw BSON documents by field (`documents`, `updates`, `deletes`); empty if there are none."""
        self.peer = peer
        self.time_is_up = False
        """Set by the shell for the last run of a command that returned `Wait`: it must answer now."""
        self.deadline_ms: float | None = None
        """When `maxTimeMS` is over, on the engine's monotonic clock; None: no limit."""
        self.wait_until_ms: float | None = None
        """Set by the shell at the first `Wait`: when it ends, on the loop's clock."""
        self.since_ms: float
        """Set by the shell with `wait_until_ms`: when the wait began, on the same clock."""
        self._body = body
        self.cursor: Any = None
        """The cursor of a getMore that was recognised by its bytes, see `standing.py`."""

    @property
    def body(self) -> dict[str, Any]:
        """The body decoded, once, at the first look; the sequences are not in it."""
        if self._body is None:
            self._body = decode(self.raw)
        return self._body
