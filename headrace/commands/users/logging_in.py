"""saslStart, saslContinue, authenticate, logout; and the first step of a login in a hello.

Rule: a failed login reveals nothing about the user. It takes the same steps and the same time whether the user exists
or not. It is answered after a delay, during which the connection cannot try another password.
"""

from __future__ import annotations

import os
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Any, Final

from bson import Binary

from headrace import limits
from headrace.auth.names import EXTERNAL, UserName
from headrace.auth.scram import HASHES, ClientFirst, Exchange, fake
from headrace.auth.users import MECHANISMS, credentials_of, mechanisms_of
from headrace.dispatch.access import shortened
from headrace.dispatch.arguments import Fields, any_type, document, number, string
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import ClientInfo, Request
from headrace.dispatch.requirement import ANYONE
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

X509: Final = "MONGODB-X509"
MECHANISM: Final = string("mechanism", required=True)
OPTIONS: Final = document("options")
PAYLOAD: Final = any_type("payload", required=True)
CONVERSATION_ID: Final = number("conversationId", 0, required=True)
USER: Final = string("user")

_NAMES: Final = frozenset({*HASHES, X509, "GSSAPI", "MONGODB-AWS", "MONGODB-CR", "MONGODB-OIDC", "PLAIN"})
"""The names of all mechanisms, including those that Headrace does not support."""
ABANDONED: Final = 337
"""MongoDB's AuthenticationAbandoned: a begun login was replaced by another one, or the client has disconnected."""
_KINDS: Final = ("authenticate", "speculativeAuthenticate")


class Conversation:
    """An unfinished login on a connection."""

    __slots__ = ("exchange", "kind", "mechanism", "name", "proven", "skips_empty")

    def __init__(self, name: UserName, mechanism: str, exchange: Exchange, *, kind: str, skips_empty: bool) -> None:
        self.name = name
        self.mechanism = mechanism
        self.exchange = exchange
        self.kind = kind
        self.proven = False
        """Whether the client has proven that it knows the password. It will then send an empty message."""
        self.skips_empty = skips_empty


def sasl_start(context: CommandContext, request: Request) -> dict[str, Any] | Wait:
    """saslStart: begin a login, and answer the server's first message."""
    return _delayed(context, request, lambda: begin(context, request, request.body, request.db))


def begin(
    context: CommandContext, request: Request, body: dict[str, Any], db: str, *, speculative: bool = False
) -> dict[str, Any]:
    """Begin a login. Raise 18, or 334 for an unknown mechanism."""
    access, client = context.engine.access, request.client
    mechanism, kind = body.get("mechanism"), _KINDS[speculative]
    abandon(context.engine, client)
    if mechanism == X509:
        return _with_certificate(context, client, None, kind)
    if mechanism not in context.engine.options.mechanisms or mechanism not in HASHES or db == EXTERNAL:
        raise _unsupported(mechanism, db)
    access.count(mechanism, kind, "received")
    first = ClientFirst(_payload(body))
    name = UserName(first.user, db)
    stored = access.user(name)
    if speculative and stored is not None and mechanism not in mechanisms_of(stored):
        raise CommandError(18, "Authentication failed.")  # saslSupportedMechs in the same hello shows why
    invented = fake(mechanism, name.id, access.secret)
    credentials = (None if stored is None else credentials_of(stored, mechanism)) or invented
    exchange = Exchange(first, credentials, urlsafe_b64encode(os.urandom(24)).decode())
    skips = bool(OPTIONS.of(body).get("skipEmptyExchange"))
    client.conversation = Conversation(name, mechanism, exchange, kind=kind, skips_empty=skips)
    return {"conversationId": 1, "done": False, "payload": Binary(exchange.server_first.encode())}


def _unsupported(mechanism: object, db: str) -> CommandError:
    return CommandError(334, f"Unsupported mechanism '{mechanism!s:.100}' on authentication database '{db:.100}'")


def _payload(body: dict[str, Any]) -> bytes:
    payload = body.get("payload")
    if isinstance(payload, bytes):
        return bytes(payload)
    raise CommandError(18, "Authentication failed.")


def sasl_continue(context: CommandContext, request: Request) -> dict[str, Any] | Wait:
    """saslContinue: check the client's proof, and later accept its final empty message unless it skips that."""
    return _delayed(context, request, lambda: _continue(context, request))


def _continue(context: CommandContext, request: Request) -> dict[str, Any]:
    client, body = request.client, request.body
    conversation: Conversation | None = client.conversation
    if conversation is None:
        raise CommandError(17, "No SASL session state found")
    client.conversation = None
    if CONVERSATION_ID.of(body) != 1:
        raise CommandError(17, "sasl: Mismatched conversation id")
    access = context.engine.access
    if conversation.proven:
        return {"conversationId": 1, "done": True, "payload": Binary(b"")}
    last = conversation.exchange.finish(_payload(body))
    _require_unchanged(access.user(conversation.name) or {}, conversation)
    access.log_in(client, conversation.name)
    access.count(conversation.mechanism, conversation.kind, "successful")
    access.note("authenticate", client, _details(conversation.name, conversation.mechanism))
    conversation.proven = True
    if not conversation.skips_empty:
        client.conversation = conversation
    return {"conversationId": 1, "done": conversation.skips_empty, "payload": Binary(last)}


def _require_unchanged(user: dict[str, Any], conversation: Conversation) -> None:
    """Raise 18 if the user's password or mechanisms have changed since the login began."""
    mechanism = conversation.mechanism
    same = credentials_of(user, mechanism) == conversation.exchange.credentials
    if not same or mechanism not in mechanisms_of(user):
        raise CommandError(18, "Authentication failed.")


def authenticate(context: CommandContext, request: Request) -> dict[str, Any] | Wait:
    """authenticate: log in a user by the client's certificate, which TLS has verified."""
    return _delayed(context, request, lambda: _authenticate(context, request))


def _authenticate(context: CommandContext, request: Request) -> dict[str, Any]:
    mechanism = request.body.get("mechanism")
    if mechanism != X509 or request.db != EXTERNAL:
        raise _unsupported(mechanism, request.db)
    subject = USER.of(request.body) or None
    return _with_certificate(context, request.client, subject, "authenticate")


def _with_certificate(context: CommandContext, client: ClientInfo, subject: str | None, kind: str) -> dict[str, Any]:
    """Log in the user that the client's certificate names. `subject`: the name that the client sent, if any."""
    if X509 not in context.engine.options.mechanisms:
        raise _unsupported(X509, EXTERNAL)
    access = context.engine.access
    access.count(X509, kind, "received")
    named = client.certificate_subject
    if named is None or subject not in (None, named):
        raise CommandError(18, "Authentication failed.")
    name = UserName(named, EXTERNAL)
    access.log_in(client, name)
    access.count(X509, kind, "successful")
    access.note("authenticate", client, _details(name, X509))
    return {"dbname": EXTERNAL, "user": named}


def abandon(engine: Engine, client: ClientInfo) -> None:
    """Abandon the unfinished login on a connection, if any, and report it."""
    conversation: Conversation | None = client.conversation
    client.conversation = None
    if conversation is not None and not conversation.proven:
        details = _details(conversation.name, conversation.mechanism)
        engine.access.note("authenticate", client, details, ABANDONED)


def _details(name: UserName, mechanism: str) -> dict[str, Any]:
    return {"user": shortened(name.user), "db": shortened(name.db), "mechanism": mechanism}


def _attempted(request: Request) -> dict[str, Any]:
    """Return the details of a login that failed before its conversation began, so that its user is not known."""
    mechanism = request.body.get("mechanism")
    user = request.client.certificate_subject if mechanism == X509 else None
    is_known = type(mechanism) is str and mechanism in _NAMES  # other text may be a password
    return {"user": user or "", "db": shortened(request.db), "mechanism": mechanism if is_known else ""}


def _delayed(context: CommandContext, request: Request, run: Any) -> dict[str, Any] | Wait:
    """Answer a success at once and a failure after a delay. A failure also ends the connection's login."""
    if isinstance(request.failure, CommandError):
        raise request.failure
    attempted = request.client.conversation if request.name == "saslContinue" else None
    try:
        return run()  # type: ignore[no-any-return]
    except CommandError as error:
        request.client.conversation = None
        details = _attempted(request) if attempted is None else _details(attempted.name, attempted.mechanism)
        context.engine.access.note("authenticate", request.client, details, error.code)
        request.failure = error
        return Wait(limits.LOGIN_DELAY_MS)


def logout(context: CommandContext, request: Request) -> dict[str, Any]:
    """logout: log out the connection's user, if it is a user of this database."""
    abandon(context.engine, request.client)
    context.engine.access.log_out(request.client, request.db)
    return {}


# Fields of a hello.


def speculative(context: CommandContext, request: Request, asked: Any) -> dict[str, Any] | None:
    """Return the answer to the first message of a login in a hello; None if it fails, and hello then omits it."""
    if type(asked) is not dict:
        return None
    try:
        if "saslStart" in asked:
            db = asked.get("db")
            return begin(context, request, asked, db if type(db) is str else "admin", speculative=True)
        if asked.get("mechanism") == X509:
            return _with_certificate(context, request.client, asked.get("user"), "speculativeAuthenticate")
    except CommandError:
        request.client.conversation = None
    return None


def supported_mechanisms(context: CommandContext, asked: str) -> list[str]:
    """Return the enabled mechanisms of the user `db.name`; all enabled ones if the user does not exist."""
    db, _, user = asked.partition(".")
    document_of_user = context.engine.access.user(UserName(user, db))
    names = list(MECHANISMS) if document_of_user is None else mechanisms_of(document_of_user)
    enabled = context.engine.options.mechanisms
    return [name for name in names if name in enabled or name not in MECHANISMS]


_SASL: Final = Fields(MECHANISM, OPTIONS, PAYLOAD, any_type("autoAuthorize"), strict=False)

COMMANDS: Final = (
    Command("authenticate", authenticate, Fields(string("mechanism"), USER, strict=False), requires=ANYONE),
    Command("logout", logout, Fields(strict=False), requires=ANYONE),
    Command("saslContinue", sasl_continue, Fields(CONVERSATION_ID, PAYLOAD, strict=False), requires=ANYONE),
    Command("saslStart", sasl_start, _SASL, requires=ANYONE),
)
