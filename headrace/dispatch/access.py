"""Access control of a server: its stored users and roles, and the user of each connection.

A change of `admin.system.users` or `admin.system.roles` takes effect with its commit, whichever command wrote it. Each
such commit begins a new *generation*, and a connection looks up its user again at its next check.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace import limits
from headrace.auth import restrictions
from headrace.auth.names import RoleName, UserName
from headrace.auth.privileges import CLUSTER, Privilege, Privileges, allowed, merged
from headrace.auth.roles import Resolved, resolve, roles_of
from headrace.dispatch.request import ClientInfo, Request
from headrace.dispatch.requirement import unauthorized
from headrace.dispatch.sessions import lsid_of, user_digest
from headrace.errors import CommandError
from headrace.store.view import View
from headrace.values.bson import decode, encode
from headrace.values.keystring.encoding import encode_element

if TYPE_CHECKING:
    from headrace.dispatch.command import Command
    from headrace.dispatch.engine import Engine
    from headrace.store.store import Committed, Store

USERS: Final = "admin.system.users"
ROLES: Final = "admin.system.roles"
ACCOUNTS: Final = frozenset({USERS, ROLES})
"""The collections that have credentials and privileges. No view reads them, and no rename moves them."""
SECRET_KEY: Final = b"login-secret"
"""The key, in the table `meta`, of the secret from which the salts of users that do not exist are made."""
_TOPICS: Final = frozenset({USERS, ROLES, "admin.$cmd"})

AccessEvent = tuple[str, ClientInfo, dict[str, Any], int]
"""(event, client, details, error code or 0), for `Access.listeners`."""


_RESOLVED_COUNT_MAX: Final = 256  # lists of roles whose privileges connections share; root's take 16 KiB


class Grants:
    """The privileges that a connection has through its user's roles, in one generation."""

    __slots__ = ("document", "generation", "name", "resolved")

    def __init__(self, name: UserName, document: dict[str, Any], resolved: Resolved, generation: int) -> None:
        self.name = name
        self.document = document
        self.resolved = resolved
        self.generation = generation

    @property
    def privileges(self) -> Privileges:
        """Actions by resource."""
        return self.resolved.privileges

    def permits(self, resource: str, actions: frozenset[str]) -> bool:
        """Whether the user may do all these actions on a resource."""
        return allowed(self.resolved.privileges, resource, actions)


class CursorOwner(NamedTuple):
    """The owner of a cursor, and the privileges that opening it required."""

    name: UserName
    required: frozenset[Privilege]
    lsid: dict[str, Any] | None
    """The `lsid` of the session that opened the cursor."""


PROGRAM: Final = UserName("__system", "local")
"""The owner of the cursors of a program that embeds the store: MongoDB's internal user, which cannot log in."""
_NOBODY: Final = UserName("", "")
_OF_PROGRAM: Final = CursorOwner(PROGRAM, frozenset(), None)
_LOCALHOST: Final = merged((
    ("admin.", frozenset({"createUser", "grantRole"})),
    ("$external.", frozenset({"createUser"})),
    (CLUSTER, frozenset({"replSetConfigure", "replSetGetStatus"})),
))  # fmt: skip
"""MongoDB's localhost exception: while there are no users, a client on this machine may create the first one."""


class Access:
    """The users and roles of one store."""

    def __init__(self, store: Store, *, authorizes: bool = False, localhost_exception: bool = True) -> None:
        """`authorizes`: commands require a user with privileges, and a session belongs to its user.

        `localhost_exception`: a client on this machine may create the first user."""
        self._localhost_exception = localhost_exception
        self._store = store
        self.authorizes = authorizes
        self.generation = 0
        self.listeners: list[Callable[[AccessEvent], None]] = []
        """Functions called for each login, successful or not, each logout, and each change of users and roles."""
        self.changed: Callable[[], None] = lambda: None
        """The function called when users or roles may have changed."""
        self._has_users: bool | None = None
        self._secret: bytes | None = None
        self._resolved: dict[tuple[RoleName, ...], Resolved] = {}
        """Resolved roles of this generation, shared by all connections whose users have these roles."""
        self._count = {"received": 0, "successful": 0}
        self.counts: dict[str, dict[str, dict[str, int]]] = {}
        """Logins `received` and `successful`, by mechanism, then `authenticate` or `speculativeAuthenticate`."""
        store.listeners.append(self._committed)
        store.admin_listeners.append(self.invalidate)

    def _committed(self, committed: Committed) -> None:
        for topics, _, _ in committed.runs:
            if not _TOPICS.isdisjoint(topics):
                self.invalidate()
                return

    def invalidate(self) -> None:
        """Begin a new generation, because users or roles may have changed."""
        self.generation += 1
        self._has_users = None
        self._resolved.clear()
        self.changed()

    def note(self, what: str, client: ClientInfo, details: dict[str, Any], code: int = 0) -> None:
        """Notify the listeners of an event."""
        for listener in self.listeners:
            listener((what, client, details, code))

    def count(self, mechanism: str, kind: str, what: str) -> None:
        """Count a login for `serverStatus`."""
        kinds = self.counts.setdefault(
            mechanism, {name: dict(self._count) for name in ("authenticate", "speculativeAuthenticate")}
        )
        kinds[kind][what] += 1

    # Stored users and roles.

    def user(self, name: UserName) -> dict[str, Any] | None:
        """The stored document of a user."""
        return self._stored(USERS, name.id)

    def role(self, name: RoleName) -> dict[str, Any] | None:
        """The stored document of a user-defined role."""
        return self._stored(ROLES, name.id)

    def _stored(self, namespace: str, identity: str) -> dict[str, Any] | None:
        with self._store.reading() as view:
            return stored(view, namespace, identity)

    @property
    def has_users(self) -> bool:
        """Whether the store has any user."""
        if self._has_users is None:
            with self._store.reading() as view:
                collection = view.collection(USERS)
                self._has_users = collection is not None and next(view.records(collection), None) is not None
        return self._has_users

    @property
    def secret(self) -> bytes:
        """The secret for the salts of users that do not exist. It is stored with the first user."""
        if self._secret is None:
            with self._store.reading() as view:
                self._secret = view.kv.get(SECRET_KEY, db=view.tables["meta"]) or os.urandom(32)
        return self._secret

    # The user of a connection.

    def grants(self, client: ClientInfo) -> Grants | None:
        """Return the privileges of the connection's user; None if no user is logged in. Log out a dropped user."""
        grants: Grants | None = client.grants
        if grants is None or grants.generation == self.generation:
            return grants
        document = self.user(grants.name)
        same = document is not None and document.get("userId") == grants.document.get("userId")
        try:
            grants = self._granted(grants.name, document, client) if same and document is not None else None
        except CommandError:
            grants = None
        self._set(client, grants)
        return grants

    def shown_roles(self, client: ClientInfo) -> list[dict[str, Any]]:
        """Return the roles of the connection's user, inherited ones included, as `$$USER_ROLES` shows them."""
        if client.shown_roles is not None:
            return client.shown_roles
        grants = self.grants(client)
        roles = () if grants is None else grants.resolved.roles
        return [{"_id": each.id, "role": each.role, "db": each.db} for each in roles]

    def _set(self, client: ClientInfo, grants: Grants | None) -> None:
        client.grants = grants
        client.uid = user_digest(grants.name) if self.authorizes and grants is not None else None

    def log_in(self, client: ClientInfo, name: UserName) -> None:
        """Log this user in on the connection.

        Raise 18 if authentication restrictions forbid it, 5626701 or 5626702 if another user is already logged in."""
        before = self.grants(client)
        if before is not None and before.name != name:
            if before.name.db == name.db:
                raise CommandError(
                    5626701,
                    f"Each client connection may only be authenticated once. Previously authenticated as: "
                    f"{before.name.text}",
                )
            raise CommandError(
                5626702,
                f"Client has attempted to authenticate on multiple databases.Already authenticated as: "
                f"{before.name.text}",
            )
        document = self.user(name)
        if document is None:
            raise CommandError(18, "Authentication failed.")
        self._set(client, self._granted(name, document, client))

    def _granted(self, name: UserName, document: dict[str, Any], client: ClientInfo) -> Grants:
        resolved = self._resolve(document)
        lists = (document.get("authenticationRestrictions") or [], *resolved.restrictions)
        if any(lists) and not restrictions.permitted(lists, *addresses(client)):
            raise CommandError(18, "Authentication failed.")
        return Grants(name, document, resolved, self.generation)

    def _resolve(self, document: dict[str, Any]) -> Resolved:
        roles = tuple(roles_of(document))
        resolved = self._resolved.get(roles)
        if resolved is None:
            if len(self._resolved) >= _RESOLVED_COUNT_MAX:
                self._resolved.clear()
            resolved = self._resolved[roles] = resolve(roles, self.role)
        return resolved

    def note_logout(self, client: ClientInfo, name: UserName, reason: str) -> None:
        """Report to the listeners that a connection's user is logged out."""
        users = [{"user": name.user, "db": name.db}]
        self.note("logout", client, {"reason": reason, "initialUsers": users, "updatedUsers": []})

    # The user's privileges: on a server with authorization the engine checks them before each command.

    def require_login(self, command: Command, request: Request) -> None:
        """Raise 13 if the command requires a login and no user is logged in."""
        grants: Grants | None = request.client.grants
        if grants is not None and grants.generation == self.generation:
            return
        if not command.requires.login or self.grants(request.client) is not None:
            return
        if not (self._localhost_exception and request.client.is_on_this_machine and not self.has_users):
            self.note("authCheck", request.client, _checked(command, request), 13)
            raise CommandError(13, f"Command {command.name} requires authentication")

    def require_privileges(self, engine: Engine, command: Command, request: Request) -> None:
        """Raise 13 if the user lacks a privilege that the command requires. Set `request.required`."""
        needs = command.requires.needs
        if needs is None:
            return
        grants: Grants | None = request.client.grants
        if grants is None:
            grants = Grants(_NOBODY, {}, Resolved((), _LOCALHOST, ()), self.generation)
        try:
            required = tuple(needs(engine, request, grants))
            if not all(grants.permits(*wanted) for wanted in required):
                raise unauthorized(request)
        except CommandError as error:
            if error.code == 13:
                self.note("authCheck", request.client, _checked(command, request), 13)
            raise
        request.required = required

    def require_again(self, engine: Engine, command: Command, request: Request) -> None:
        """Raise 13 if the user may no longer run a command that has waited."""
        self.require_login(command, request)
        self.require_privileges(engine, command, request)

    def owner(self, request: Request) -> CursorOwner | None:
        """Return the owner of the cursor that a request opens; None if no user is logged in."""
        grants: Grants | None = request.client.grants
        if request.client.is_program:
            return _OF_PROGRAM
        if grants is None:
            return None
        lsid = lsid_of(request) if type(request.body.get("lsid")) is dict else None
        return CursorOwner(grants.name, frozenset(request.required), lsid)

    def still_owns(self, client: ClientInfo, owner: CursorOwner | None) -> bool:
        """Whether a client may go on reading a cursor, judged without looking up its user; False if unknown."""
        grants: Grants | None = client.grants
        if grants is None or owner is None or grants.generation != self.generation:
            return False
        return grants.name == owner.name and all(grants.permits(*wanted) for wanted in owner.required)

    def may_still(self, owner: CursorOwner, users: dict[UserName, Privileges | None]) -> bool:
        """Whether a cursor's user exists and may open the cursor now.

        `users` caches the privileges by user, None for a dropped one; this method adds to it."""
        if owner.name == PROGRAM:
            users[PROGRAM] = {}
            return True
        if owner.name not in users:
            document = self.user(owner.name)
            users[owner.name] = None if document is None else self._resolve(document).privileges
        privileges = users[owner.name]
        return privileges is not None and all(allowed(privileges, *wanted) for wanted in owner.required)

    def log_out(self, client: ClientInfo, db: str) -> None:
        """Log the connection's user out, if it is a user of that database."""
        grants = self.grants(client)
        if grants is not None and grants.name.db == db:
            self._set(client, None)
            self.note_logout(client, grants.name, f"Explicit logout from {db}")


def _checked(command: Command, request: Request) -> dict[str, Any]:
    """Return the details of a refusal as MongoDB's audit log has them: only the command's names, not its values."""
    name = request.body.get("collection" if request.name == "getMore" else request.name)
    db = shortened(request.db)
    is_of_user = "User" in command.name or "Role" in command.name
    names_collection = not command.admin_only and not is_of_user
    collection = shortened(name) if type(name) is str and names_collection else None
    return {
        "command": request.name, **({} if collection is None else {"ns": f"{db}.{collection}"}),
        "args": {request.name: 1 if collection is None else collection, "$db": db},
    }  # fmt: skip


def shortened(name: str) -> str:
    """Cut a name from an unauthenticated client to the length that logs allow."""
    return name[: limits.LOG_TEXT_LENGTH_MAX]


def addresses(client: ClientInfo) -> tuple[str, str]:
    """Return the numeric addresses of the client and the server; empty strings for a Unix socket."""
    if isinstance(client.local_address, str):
        return "", ""
    return client.address.rpartition(":")[0].strip("[]"), client.local_address[0]


def stored(view: View, namespace: str, identity: str) -> dict[str, Any] | None:
    """Return the document with this `_id`, or None."""
    held = located(view, namespace, identity)
    return None if held is None else decode(held[1])


def located(view: View, namespace: str, identity: str) -> tuple[bytes, bytes] | None:
    """Return (record, raw document) for this `_id`, or None."""
    collection = view.collection(namespace)
    if collection is None or collection.is_view:
        return None
    key = encode({"_id": identity})
    return view.by_id(collection, encode_element(key[4], key[9:-1]))
