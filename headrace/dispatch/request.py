"""One command as a client sent it, parsed from the body of its message, and information about the client."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from bson import Binary, Int64, ObjectId

from headrace.errors import CommandError, Interrupted
from headrace.values.bson import LearnedLayout, decode, iter_elements

UNIX_SOCKET: Final = "anonymous unix socket"
"""The address of a client on a Unix socket, as MongoDB writes it."""


def is_loopback(address: str) -> bool:
    """Whether a numeric address is a loopback address, also as an IPv4-mapped IPv6 address."""
    try:
        number = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = number.ipv4_mapped if isinstance(number, ipaddress.IPv6Address) else None
    return (mapped or number).is_loopback


def require_loopback(request: Request) -> None:
    """Raise 13 for a client on another machine, for commands that a server without authorization must restrict."""
    if not request.client.is_on_this_machine:
        raise CommandError(13, f"{request.name} must run from localhost when running db without auth")


@dataclass(frozen=True, slots=True)
class TlsSession:
    """The result of a TLS handshake: the agreed version and cipher, and the client's verified identity."""

    version: str
    """`TLSv1.2` or `TLSv1.3`."""
    cipher: str
    subject: str | None
    """The subject of the client's verified certificate, as RFC 2253 text; None if the client sent none."""


class ClientInfo:
    """The client at the other end of one socket. The object lives as long as the socket."""

    __slots__ = (
        "address",
        "certificate_subject",
        "commands",
        "compressors",
        "connection_id",
        "conversation",
        "cut_off",
        "grants",
        "is_program",
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
        """The client's address as MongoDB writes it: `127.0.0.1:51234`, or `anonymous unix socket`."""
        self.local_address = local_address
        """The server's end of the socket: (host, port), or the path of a Unix socket."""
        self.tls = tls
        """The TLS session; None for a client without TLS."""
        self.metadata: dict[str, Any] | None = None
        """The `client` document of the first hello: driver, os, platform, application."""
        self.compressors: list[str] = []
        """The compressors agreed upon at hello, in the client's order."""
        self.certificate_subject = None if tls is None else tls.subject
        """The subject of the client's verified certificate; None: no certificate."""
        self.uid: bytes | None = None
        """`lsid.uid` of the user's sessions, on a server with authorization; None: no user."""
        self.commands: dict[int, Any] = {}
        """The last commands, as `RepeatedCommand` by the length of the body, to recognise repetitions; None: a body of
        this length has come once."""
        self.conversation: Any = None
        """The unfinished login on this connection; see `commands/users/logging_in.py`."""
        self.grants: Any = None
        """The privileges of the client's user; None: no user is logged in. Read them through `Access.grants`."""
        self.shown_roles: list[dict[str, Any]] | None = None
        """The value of `$$USER_ROLES`, in a reader process, which does not know the user."""
        self.is_program = False
        """Whether the client is a thread of the program that embeds the store, which needs no login."""
        self.cut_off = False
        """Set by a fail point: the connection closes in place of the next answer to a write."""

    @property
    def is_on_this_machine(self) -> bool:
        """Whether the client connected over a Unix socket or from a loopback address."""
        return self.address == UNIX_SOCKET or is_loopback(self.address.rpartition(":")[0])

    @property
    def local_host(self) -> str:
        """The server's address as drivers write it: `host:port`, `[v6]:port`, or the path of the Unix socket."""
        if isinstance(self.local_address, str):
            return self.local_address
        host, port = self.local_address[0], self.local_address[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Request:
    """One command: the body, decoded and raw, and the raw document sequences."""

    __slots__ = (
        "body",
        "client",
        "cursor",
        "db",
        "deadline_ms",
        "failure",
        "is_special",
        "message_bytes",
        "name",
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
        """Raw BSON documents of kind-1 sections, by field (`documents`, `updates`, `deletes`)."""
        self.client = client
        self.time_is_up = False
        """Set by the shell for the last run of a command that returned `Wait`: it must answer now."""
        self.deadline_ms: float | None = None
        """The end of `maxTimeMS` on the engine's monotonic clock; None: no limit."""
        self.wait_until_ms: float | None = None
        """The end of the wait, on the loop's clock. The shell sets it at the first `Wait`."""
        self.since_ms: float
        """The start of the wait, on the loop's clock. The shell sets it with `wait_until_ms`."""
        self.body = decode(raw) if body is None else body
        """The decoded body, without the sequences."""
        self.is_special = False
        """Whether the command runs with anything around it: a time limit, a transaction, the profiler."""
        self.repeated: RepeatedCommand | None = None
        """The checked command that this request repeats; None: the body was not checked before."""
        self.message_bytes = 0
        """The size of the message, if it is short and repeats a command; otherwise 0."""
        self.required: tuple[Any, ...] = ()
        """The privileges that the request requires, on a server with authorization; see `Access.require_privileges`."""
        self.failure: Any = None
        """The error of a failed login, which is answered after a delay."""
        self.cursor: Any = None
        """The cursor of a getMore that was recognised by its bytes; see `repeated_getmore.py`."""


_UNREAD: Final[dict[str, Any]] = {}
_NO_SEQUENCES: Final[dict[str, list[bytes]]] = {}


class UnreadRequest(Request):
    """A request whose body is decoded at first access: most repeated commands never need the body."""

    __slots__ = ("_body",)

    def __init__(
        self, name: str, db: str, raw: bytes, client: ClientInfo, sequences: dict[str, list[bytes]] = _NO_SEQUENCES,
        repeated: RepeatedCommand | None = None, message_bytes: int = 0,
    ) -> None:  # fmt: skip
        # Set all fields of `Request` without calling its `__init__`, for speed: each event of each change stream and
        # most writes make one of these.
        self.name = name
        self.db = db
        self.raw = raw
        self.sequences = sequences
        self.client = client
        self.time_is_up = self.is_special = False
        self.deadline_ms = self.wait_until_ms = None
        self.repeated = repeated
        self._body = _UNREAD
        self.message_bytes = message_bytes
        self.required = ()
        self.failure = self.cursor = None

    @property
    def body(self) -> dict[str, Any]:
        """The decoded body."""
        if self._body is _UNREAD:
            self._body = decode(self.raw) if self.repeated is None else self.repeated.body_of(self.raw)
        return self._body

    @body.setter
    def body(self, body: dict[str, Any]) -> None:
        self._body = body


_SECRETS: Final = {
    "createUser": "pwd",
    "saslContinue": "payload",
    "saslStart": "payload",
    "updateUser": "pwd",
}


def shown_body(request: Request) -> dict[str, Any]:
    """Return the body without passwords and proofs of passwords, for logs and other clients."""
    body = {
        name: value for name, value in request.body.items() if name not in ("$clusterTime", "speculativeAuthenticate")
    }
    secret = _SECRETS.get(request.name)
    if secret in body:
        body[secret] = "xxx"
    return body


def parse_message(body: bytes, sequences: dict[str, list[bytes]], client: ClientInfo) -> Request:
    """Return the command of an OP_MSG with this body and sequences. Raise 22 without a command, 40571 without `$db`."""
    repeated: RepeatedCommand | None = client.commands.get(len(body))
    if repeated is not None and repeated.is_repeated_by(body):
        return UnreadRequest(repeated.name, repeated.db, body, client, sequences, repeated)
    end = body.find(b"\x00", 5)
    if end < 0 or len(body) < 6:
        raise CommandError(22, "the message holds no command")
    name = body[5:end].decode(errors="replace")
    document = _decoded(body)
    database = document.get("$db")
    if type(database) is not str:
        raise CommandError(40571, "OP_MSG requests require a $db argument")
    if "." in database:  # otherwise `{find: "c"}` on `a.b` would mean `b.c` of the database `a`
        raise CommandError(73, f"Invalid database name: '{database}'")
    return Request(name, database, body, sequences, client, document)


def parse_legacy_query(collection: str, body: bytes, client: ClientInfo) -> Request:
    """Return the command of an OP_QUERY on `collection`, which only a first hello may use. Raise 352 or 5739101."""
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
    """Return the decoded body of a message. Raise 22 if it is invalid."""
    try:
        return decode(body)
    except Interrupted:
        raise
    except Exception as error:
        raise CommandError(22, f"invalid bson: {error}") from None


_REMEMBERED_BYTES_MAX: Final = 4096
"""Longer bodies are not remembered."""
_REMEMBERED_COUNT_MAX: Final = 8
"""The number of bodies remembered per connection."""
_READ_INT32 = Struct("<i").unpack_from
_READ_INT64 = Struct("<q").unpack_from
_INT64_TYPE: Final = 18
_SESSION_HEAD: Final = b"\x1e\x00\x00\x00\x05id\x00\x10\x00\x00\x00\x04"
"""The start of an `lsid` as drivers send it: the 16 bytes of the UUID and a zero follow."""
_ID_SIZES: Final = {0x07: 12, 0x10: 4, 0x12: 8}
"""The sizes of the `_id`s that a repeated find may name, by type."""


class RepeatedBody:
    """A body that a client repeats, recognised by its bytes.

        body    int32 size | insert: "c" | ordered | lsid: {id: UUID} | txnNumber: 7 | $db | $clusterTime: {...} | 00

    Rule: two bodies are the same if their bytes differ at most in the value of `txnNumber` and in `$clusterTime`, which
    drivers send back and the server ignores. Subclasses allow more differences.
    """

    __slots__ = ("_size", "fixed", "number_at")

    def __init__(self, body: bytes) -> None:
        self.number_at = 0
        """The offset of the value of `txnNumber`; 0: no such field."""
        self._size = len(body)
        self.fixed: list[tuple[int, bytes]] = []
        """The bytes that are the same in all repetitions, with their offsets."""
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
                self.fixed.append((at, body[at:low]))
                at = high
        if at < len(body):
            self.fixed.append((at, body[at:]))

    def _varying(self, kind: int, name: bytes, start: int, body: bytes) -> tuple[int, int]:
        """Return the start and end of the bytes of an element that may differ. Its value begins at `start`."""
        return start, start

    def is_repeated_by(self, body: bytes) -> bool:
        """Whether a message's body repeats this one."""
        if len(body) != self._size:
            return False
        for start, fixed in self.fixed:  # noqa: SIM110 (`all` calls a generator for each)
            if not body.startswith(fixed, start):
                return False
        return True


class RepeatedCommand(RepeatedBody):
    """A command of a connection, decoded and checked once for all requests that repeat its body.

    The documents of a write are in sequences beside the body. The session may differ, and so may the `_id` of
    `find: "c", filter: {_id: 7}`, if its type is the same.
    """

    __slots__ = (
        "body", "db", "facts", "form", "id_at", "id_size", "id_type", "layout", "name",
        "section", "session_at",
    )  # fmt: skip

    def __init__(self, request: Request) -> None:
        self.section = next(iter(request.sequences), "")
        """The name of the sequence beside the body; empty: no sequence."""
        self.session_at = 0
        """The offset of the session's 16 bytes; 0: no session, or one with other fields."""
        self.id_at = self.id_size = self.id_type = 0
        """The offset, size and type of the `_id` in a find's filter that may differ; 0: none."""
        self.name, self.db, self.body = request.name, request.db, request.body
        self.facts: Any = None
        """The facts about the body that the command keeps for itself; None: nothing yet."""
        self.form: Any = None
        """The form of a whole message with this body; the server sets it."""
        self.layout = LearnedLayout()
        """The layout of the documents beside the body."""
        super().__init__(request.raw)

    def _varying(self, kind: int, name: bytes, start: int, body: bytes) -> tuple[int, int]:
        if kind != 0x03:
            return start, start
        if name == b"lsid" and body.startswith(_SESSION_HEAD, start):
            self.session_at = start + len(_SESSION_HEAD)
            return self.session_at, self.session_at + 16
        if name == b"filter" and self.name == "find" and body.startswith(b"_id\x00", start + 5):
            size = _ID_SIZES.get(body[start + 4])
            if size is not None and _READ_INT32(body, start)[0] == size + 10:  # and nothing beside it
                self.id_at, self.id_size, self.id_type = start + 9, size, body[start + 4]
                return self.id_at, self.id_at + size
        return start, start

    def body_of(self, raw: bytes) -> dict[str, Any]:
        """Return the decoded body for raw bytes that repeat this one."""
        body: dict[str, Any] = self.body.copy()
        if self.number_at:
            body["txnNumber"] = Int64(_READ_INT64(raw, self.number_at)[0])
        if at := self.session_at:
            body["lsid"] = {"id": Binary(raw[at : at + 16], 4)}
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
"""Commands without sequences that are remembered; a find only if it filters by `_id` alone."""


def remember(request: Request) -> None:
    """Remember a checked command for later repetitions, if a body of the same length came before."""
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
