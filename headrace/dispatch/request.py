"""One command as a client sent it, parsed from the body of its message, and what is known of that client."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import CommandError, Interrupted
from headrace.values.bson import decode

UNIX_SOCKET: Final = "anonymous unix socket"
"""The address of a client that has come over one, as MongoDB writes it."""


def is_loopback(address: str) -> bool:
    """Whether a numeric address is one of this machine that no other can reach."""
    try:
        number = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = number.ipv4_mapped if isinstance(number, ipaddress.IPv6Address) else None
    return (mapped or number).is_loopback


def require_loopback(request: Request) -> None:
    """Raise 13 for a client on another machine: without authorization, this is all that is known of one."""
    if not request.client.is_on_this_machine:
        raise CommandError(13, f"{request.name} must run from localhost when running db without auth")


@dataclass(frozen=True, slots=True)
class TlsSession:
    """What a TLS handshake has agreed upon, and who the client has proved to be."""

    version: str
    """`TLSv1.2` or `TLSv1.3`."""
    cipher: str
    subject: str | None
    """The subject of the client's certificate, which was checked, as RFC 2253 text; None if it has sent none."""


class ClientInfo:
    """What is known of the client at the other end of one socket; lives as long as the socket does."""

    __slots__ = (
        "address",
        "certificate_subject",
        "compressors",
        "connection_id",
        "conversation",
        "cut_off",
        "grants",
        "hello_done",
        "is_program",
        "last_session",
        "local_address",
        "metadata",
        "tls",
        "uid",
    )

    def __init__(
        self, connection_id: int, address: str, local_address: tuple[str, int] | str, tls: TlsSession | None = None
    ) -> None:
        self.connection_id = connection_id
        self.address = address
        """The client's end as MongoDB writes it: `127.0.0.1:51234`, or `anonymous unix socket`."""
        self.local_address = local_address
        """Our end of the socket, which the client has reached: (host, port), or the path of a Unix socket."""
        self.tls = tls
        """None for a client that speaks no TLS."""
        self.metadata: dict[str, Any] | None = None
        """The `client` document of the first hello: driver, os, platform, application."""
        self.compressors: list[str] = []
        """The compressors agreed upon at hello, in the client's order."""
        self.hello_done = False
        self.certificate_subject = None if tls is None else tls.subject
        """The subject of the certificate that the client has shown and TLS has verified; None: none."""
        self.uid: bytes | None = None
        """`lsid.uid` of the sessions of its user, on a server with authorization; None: nobody's."""
        self.last_session: tuple[bytes | None, bytes] = (None, b"")
        """The `lsid.id` of its last command that asked for it, and what that session is known by: `session_id`."""
        self.conversation: Any = None
        """The login that has begun on this connection, see `commands/users/logging_in.py`."""
        self.grants: Any = None
        """What its user may do; None: nobody is logged in. Read through `Access.grants`."""
        self.is_program = False
        """Whether it is a thread of the program that has the store open: nobody asks it who it is."""
        self.cut_off = False
        """Set by a fail point: the connection ends instead of the next answer to a write."""

    @property
    def is_on_this_machine(self) -> bool:
        """Whether the client has come over a Unix socket or from a loopback address."""
        return self.address == UNIX_SOCKET or is_loopback(self.address.rpartition(":")[0])

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
        "body",
        "client",
        "cursor",
        "db",
        "deadline_ms",
        "name",
        "prepared",
        "raw",
        "required",
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
        client: ClientInfo,
        body: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        """The command's name as the client wrote it: the first key of the body."""
        self.db = db
        self.raw = raw
        self.sequences = sequences
        """Raw BSON documents by field (`documents`, `updates`, `deletes`); empty if there are none."""
        self.client = client
        self.time_is_up = False
        """Set by the shell for the last run of a command that returned `Wait`: it must answer now."""
        self.deadline_ms: float | None = None
        """When `maxTimeMS` is over, on the engine's monotonic clock; None: no limit."""
        self.wait_until_ms: float | None = None
        """Set by the shell at the first `Wait`: when it ends, on the loop's clock."""
        self.since_ms: float
        """Set by the shell with `wait_until_ms`: when the wait began, on the same clock."""
        self.body = decode(raw) if body is None else body
        """The body decoded; the sequences are not in it."""
        self.required: tuple[Any, ...] = ()
        """The privileges that it was found to need, on a server with authorization; see `Access.require_privileges`."""
        self.prepared: Any = None
        """What the shell has computed for it in a thread, see `Command.prepare`."""
        self.cursor: Any = None
        """The cursor of a getMore that was recognised by its bytes, see `repeated_getmore.py`."""


class UnreadRequest(Request):
    """A request whose body is decoded at the first look: of most repeated getMores nobody asks for it."""

    __slots__ = ("_body",)

    def __init__(self, name: str, db: str, raw: bytes, client: ClientInfo) -> None:
        # All that the class above sets, without a call of it: this is made for each event of each change stream.
        self.name = name
        self.db = db
        self.raw = raw
        self.sequences = _NO_SEQUENCES
        self.client = client
        self.time_is_up = False
        self.deadline_ms = self.wait_until_ms = None
        self._body = _UNREAD
        self.required = ()
        self.prepared = self.cursor = None

    @property
    def body(self) -> dict[str, Any]:
        """The body decoded."""
        if self._body is _UNREAD:
            self._body = decode(self.raw)
        return self._body

    @body.setter
    def body(self, body: dict[str, Any]) -> None:
        self._body = body


_UNREAD: Final[dict[str, Any]] = {}
_NO_SEQUENCES: Final[dict[str, list[bytes]]] = {}


_SECRETS: Final = {
    "createUser": "pwd",
    "saslContinue": "payload",
    "saslStart": "payload",
    "updateUser": "pwd",
}


def shown_body(request: Request) -> dict[str, Any]:
    """The body as others may see it: without passwords and what proves them."""
    body = {
        name: value for name, value in request.body.items() if name not in ("$clusterTime", "speculativeAuthenticate")
    }
    secret = _SECRETS.get(request.name)
    if secret in body:
        body[secret] = "xxx"
    return body


def parse_message(body: bytes, sequences: dict[str, list[bytes]], client: ClientInfo) -> Request:
    """The command of an OP_MSG: its body and its document sequences. Raises 22 for none, 40571 for no database."""
    end = body.find(b"\x00", 5)
    if end < 0 or len(body) < 6:
        raise CommandError(22, "the message holds no command")
    name = body[5:end].decode(errors="replace")
    document = _decoded(body)
    database = document.get("$db")
    if type(database) is not str:
        raise CommandError(40571, "OP_MSG requests require a $db argument")
    if "." in database:  # else `{find: "c"}` on `a.b` were about `b.c` of the database `a`
        raise CommandError(73, f"Invalid database name: '{database}'")
    return Request(name, database, body, sequences, client, document)


def parse_legacy_query(collection: str, body: bytes, client: ClientInfo) -> Request:
    """The command of an OP_QUERY on `collection`, which only a first hello may use. Raises 352, 5739101."""
    if not collection.endswith(".$cmd"):
        raise CommandError(5739101, "OP_QUERY is no longer supported. The client driver may require an upgrade.")
    document = _decoded(body)
    inner = document.get("$query", document.get("query"))
    if isinstance(inner, dict):
        document = inner
    name = next(iter(document), "")
    if name.lower() not in ("hello", "ismaster", "buildinfo", "ping"):
        raise CommandError(352, f"Unsupported OP_QUERY command: {name}. The client driver may require an upgrade.")
    return Request(name, collection[:-5], body, {}, client, document)


def _decoded(body: bytes) -> dict[str, Any]:
    """The body of a message; raises 22 for whatever is wrong with it."""
    try:
        return decode(body)
    except Interrupted:
        raise
    except Exception as error:
        raise CommandError(22, f"invalid bson: {error}") from None
