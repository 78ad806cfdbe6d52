"""One command as a client sent it, parsed from the body of its message, and what is known of that client."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from bson import Binary, Int64, ObjectId

from headrace.errors import CommandError, Interrupted
from headrace.values.bson import decode, iter_elements

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
    """The result of a TLS handshake: what both ends agreed upon, and the client's proven identity."""

    version: str
    """`TLSv1.2` or `TLSv1.3`."""
    cipher: str
    subject: str | None
    """The subject of the client's certificate, which was checked, as RFC 2253 text; None if it has sent none."""


class ClientInfo:
    """The client at the other end of one socket; lives as long as the socket does."""

    __slots__ = (
        "address",
        "certificate_subject",
        "commands",
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
        "shown_roles",
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
        """`lsid.uid` of the sessions of its user, on a server with authorization; None: no user."""
        self.last_session: Any = None
        """The session of its last command with one: `sessions.ClientSession`."""
        self.commands: dict[int, Any] = {}
        """Its last commands by the length of their bodies, for those that repeat one: `RepeatedCommand`; None: a body
        of this length has come once."""
        self.conversation: Any = None
        """The login that has begun on this connection, see `commands/users/logging_in.py`."""
        self.grants: Any = None
        """The privileges of its user; None: no user is logged in. Read through `Access.grants`."""
        self.shown_roles: list[dict[str, Any]] | None = None
        """The value of `$$USER_ROLES`, in a reader process, which does not know the user."""
        self.is_program = False
        """Whether it is a thread of the program that has the store open, which needs no login."""
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
        "is_special",
        "message_bytes",
        "name",
        "prepared",
        "raw",
        "repeated",
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
        self.is_special = False
        """Whether its command runs otherwise than by itself: with a time limit, in a transaction, measured."""
        self.repeated: RepeatedCommand | None = None
        """The command that it repeats, whose body was checked; None: it was not checked before."""
        self.message_bytes = 0
        """The size of a short message, which repeats a command; 0: of any other."""
        self.required: tuple[Any, ...] = ()
        """The privileges that it was found to need, on a server with authorization; see `Access.require_privileges`."""
        self.prepared: Any = None
        """The result of `Command.prepare`, which the shell has computed in a thread."""
        self.cursor: Any = None
        """The cursor of a getMore that was recognised by its bytes, see `repeated_getmore.py`."""


class UnreadRequest(Request):
    """A request whose body is decoded at the first look: most repeated commands never need it."""

    __slots__ = ("_body",)

    def __init__(self, name: str, db: str, raw: bytes, client: ClientInfo) -> None:
        # All that the class above sets, without a call of it: this is made for each event of each change stream, and
        # for most writes.
        self.name = name
        self.db = db
        self.raw = raw
        self.sequences = _NO_SEQUENCES
        self.client = client
        self.time_is_up = self.is_special = False
        self.deadline_ms = self.wait_until_ms = self.repeated = None
        self._body = _UNREAD
        self.message_bytes = 0
        self.required = ()
        self.prepared = self.cursor = None

    @property
    def body(self) -> dict[str, Any]:
        """The body decoded."""
        if self._body is _UNREAD:
            self._body = decode(self.raw) if self.repeated is None else self.repeated.body_of(self.raw)
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
    repeated: RepeatedCommand | None = client.commands.get(len(body))
    if repeated is not None and repeated.is_repeated_by(body):
        return repeated.request(body, sequences, client)
    end = body.find(b"\x00", 5)
    if end < 0 or len(body) < 6:
        raise CommandError(22, "the message holds no command")
    name = body[5:end].decode(errors="replace")
    document = _decoded(body)
    database = document.get("$db")
    if type(database) is not str:
        raise CommandError(40571, "OP_MSG requests require a $db argument")
    if "." in database:  # otherwise `{find: "c"}` on `a.b` were about `b.c` of the database `a`
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


_REMEMBERED_BYTES_MAX: Final = 4096
"""Longer bodies are not remembered."""
_REMEMBERED_COUNT_MAX: Final = 8
"""Bodies that are remembered of each connection."""
_READ_INT32 = Struct("<i").unpack_from
_READ_INT64 = Struct("<q").unpack_from
_INT64_TYPE: Final = 18
_SESSION_HEAD: Final = b"\x1e\x00\x00\x00\x05id\x00\x10\x00\x00\x00\x04"
"""How an `lsid` begins that drivers send: 16 bytes and a zero follow."""
_ID_SIZES: Final = {0x07: 12, 0x10: 4, 0x12: 8}
"""The sizes of the `_id`s that a repeated find may name, by type."""


class RepeatedBody:
    """A body as its client repeats it, recognised by its bytes.

        body    int32 size | insert: "c" | ordered | lsid: {id: UUID} | txnNumber: 7 | $db | $clusterTime: {...} | 00

    Rule: a body is the same if it has the same bytes but for the number of its `txnNumber`, and for what is in
    `$clusterTime`, which drivers send back and the server ignores. Subclasses leave out more.
    """

    __slots__ = ("_fixed", "_size", "number_at")

    def __init__(self, body: bytes) -> None:
        self.number_at = 0
        """Where the number of the `txnNumber` is; 0: there is none."""
        self._size = len(body)
        self._fixed: list[tuple[int, bytes]] = []  # (start, the bytes that are there)
        at = 0
        for kind, name, start, end in iter_elements(body):
            low, high = start, start
            if name == b"txnNumber" and kind == _INT64_TYPE:
                self.number_at, high = start, end
            elif name == b"$clusterTime" and kind == 0x03:
                low, high = start + 4, end
            else:
                low, high = self._varying(kind, name, start, body)
            if low < high:
                self._fixed.append((at, body[at:low]))
                at = high
        if at < len(body):
            self._fixed.append((at, body[at:]))

    def _varying(self, kind: int, name: bytes, start: int, body: bytes) -> tuple[int, int]:
        """Return from where to where the bytes of an element may be others; its value is at `start`."""
        return start, start

    def is_repeated_by(self, body: bytes) -> bool:
        """Whether a message's body is this one again."""
        return len(body) == self._size and self.is_repeated_at(body, 0)

    def is_repeated_at(self, message: bytes, at: int) -> bool:
        """Whether the body of the same size that begins at `at` is this one again."""
        for start, fixed in self._fixed:  # noqa: SIM110 (`all` calls a generator for each)
            if not message.startswith(fixed, at + start):
                return False
        return True


class RepeatedCommand(RepeatedBody):
    """A command of a connection, decoded and checked once for all that repeat its body.

    The documents of a write are in sequences beside it. The session may be another, and so may the `_id` of
    `find: "c", filter: {_id: 7}`, if its type is the same.
    """

    __slots__ = (
        "_session", "body", "command", "db", "facts", "id_at", "id_size", "id_type", "name", "section", "session_at",
    )  # fmt: skip

    def __init__(self, request: Request) -> None:
        self.command: Any = None
        """The `Command` that it was found to be, for requests about which nothing is special; None: look."""
        self.section = next(iter(request.sequences), "")
        """The name of the sequence beside it; empty: there is none."""
        self.session_at = 0
        """Where the 16 bytes of its session are; 0: it has none, or one with other fields."""
        self.id_at = self.id_size = self.id_type = 0
        """Where the `_id` of a find's filter is, its size and its type; 0: it is not left out."""
        self._session = b""
        self.name, self.db, self.body = request.name, request.db, request.body
        self.facts: Any = None
        """The facts that its command has found out about the body, for itself; None: nothing yet."""
        super().__init__(request.raw)

    def _varying(self, kind: int, name: bytes, start: int, body: bytes) -> tuple[int, int]:
        if kind != 0x03:
            return start, start
        if name == b"lsid" and body.startswith(_SESSION_HEAD, start):
            self.session_at = start + len(_SESSION_HEAD)
            self._session = body[self.session_at : self.session_at + 16]
            return self.session_at, self.session_at + 16
        if name == b"filter" and self.name == "find" and body.startswith(b"_id\x00", start + 5):
            size = _ID_SIZES.get(body[start + 4])
            if size is not None and _READ_INT32(body, start)[0] == size + 10:  # and nothing beside it
                self.id_at, self.id_size, self.id_type = start + 9, size, body[start + 4]
                return self.id_at, self.id_at + size
        return start, start

    def request(self, raw: bytes, sequences: dict[str, list[bytes]], client: ClientInfo) -> UnreadRequest:
        """The request of a body that repeats it."""
        request = UnreadRequest(self.name, self.db, raw, client)
        request.sequences = sequences
        request.repeated = self
        return request

    def body_of(self, raw: bytes) -> dict[str, Any]:
        """The decoded body of one that repeats it."""
        body: dict[str, Any] = self.body.copy()
        if self.number_at:
            body["txnNumber"] = Int64(_READ_INT64(raw, self.number_at)[0])
        if at := self.session_at:
            session = raw[at : at + 16]
            if session != self._session:
                self._session, self.body["lsid"] = session, {"id": Binary(session, 4)}
                body["lsid"] = self.body["lsid"]
        if at := self.id_at:
            body["filter"] = {"_id": self._identity(raw, at)}
        return body

    def _identity(self, raw: bytes, at: int) -> Any:
        if self.id_type == 0x07:
            return ObjectId(raw[at : at + 12])
        if self.id_type == 0x10:
            return _READ_INT32(raw, at)[0]
        return Int64(_READ_INT64(raw, at)[0])


REMEMBERED: Final = frozenset({"find", "ping"})
"""Commands without sequences that are remembered; of finds only those of one `_id`."""


def remember(request: Request) -> None:
    """Keep a command that has been checked for those after it, once a body of its length has come twice."""
    size, commands = len(request.raw), request.client.commands
    if size > _REMEMBERED_BYTES_MAX or not (request.sequences or request.name in REMEMBERED):
        return
    if request.name == "find":
        spec = request.body.get("filter")
        if type(spec) is not dict or len(spec) != 1 or "_id" not in spec:
            return
    if size not in commands or commands[size] is not None:
        if len(commands) >= _REMEMBERED_COUNT_MAX:
            del commands[next(iter(commands))]
        commands[size] = None
    else:
        commands[size] = RepeatedCommand(request)
