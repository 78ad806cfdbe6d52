"""Who the clients of a server are: its users and roles as they are stored, and which of them a connection is.

What is stored in `admin.system.users` and `admin.system.roles` counts from the commit on, whoever wrote it: each
commit there begins a new *generation*, and a connection looks its user up again when it is asked for the next time.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from headrace.auth import restrictions
from headrace.auth.names import RoleName, UserName
from headrace.auth.privileges import Privileges, allowed
from headrace.auth.roles import Resolved, resolve, roles_of
from headrace.dispatch.request import ClientInfo
from headrace.errors import CommandError
from headrace.store.view import View
from headrace.values.bson import decode, encode
from headrace.values.keystring import encode_element

if TYPE_CHECKING:
    from headrace.store.store import Committed, Store

USERS: Final = "admin.system.users"
ROLES: Final = "admin.system.roles"
SECRET_KEY: Final = b"login-secret"
"""In the table `meta`: what the salts of users that do not exist are made from."""
_TOPICS: Final = frozenset({USERS, ROLES, "admin.$cmd"})

AccessEvent = tuple[str, ClientInfo, dict[str, Any], int]
"""What happened, to whom, its details, and the code of its error, 0 for none. See `Access.listeners`."""


class Grants:
    """What a connection may do: what its user's roles came to in one generation."""

    __slots__ = ("allowed", "document", "generation", "name", "resolved")

    def __init__(self, name: UserName, document: dict[str, Any], resolved: Resolved, generation: int) -> None:
        self.name = name
        self.document = document
        self.resolved = resolved
        self.generation = generation
        self.allowed: set[tuple[str, frozenset[str]]] = set()
        """What was asked for and granted already."""

    @property
    def privileges(self) -> Privileges:
        """Actions by resource."""
        return self.resolved.privileges

    def permits(self, resource: str, actions: frozenset[str]) -> bool:
        """Whether the user may do all these actions on a resource."""
        wanted = (resource, actions)
        if wanted in self.allowed:
            return True
        if not allowed(self.resolved.privileges, resource, actions):
            return False
        if len(self.allowed) < 4096:
            self.allowed.add(wanted)
        return True


class Access:
    """The users and roles of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.generation = 0
        self.listeners: list[Callable[[AccessEvent], None]] = []
        """Called for each login, successful or not, each logout, and each change of users and roles."""
        self._has_users: bool | None = None
        self._secret: bytes | None = None
        self._count = {"received": 0, "successful": 0}
        self.counts: dict[str, dict[str, dict[str, int]]] = {}
        """By mechanism, then `authenticate` or `speculativeAuthenticate`: logins `received` and `successful`."""
        store.listeners.append(self._committed)
        store.admin_listeners.append(self.invalidate)

    def _committed(self, committed: Committed) -> None:
        for topics, _, _ in committed.runs:
            if not _TOPICS.isdisjoint(topics):
                self.invalidate()
                return

    def invalidate(self) -> None:
        """Users or roles may have changed: look each up again."""
        self.generation += 1
        self._has_users = None

    def note(self, what: str, client: ClientInfo, details: dict[str, Any], code: int = 0) -> None:
        """Tell the listeners what happened."""
        for listener in self.listeners:
            listener((what, client, details, code))

    def count(self, mechanism: str, kind: str, what: str) -> None:
        """Count a login, as `serverStatus` shows it."""
        kinds = self.counts.setdefault(
            mechanism, {name: dict(self._count) for name in ("authenticate", "speculativeAuthenticate")}
        )
        kinds[kind][what] += 1

    # What is stored.

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
        """Whether there is any user."""
        if self._has_users is None:
            with self._store.reading() as view:
                collection = view.collection(USERS)
                self._has_users = collection is not None and next(view.records(collection), None) is not None
        return self._has_users

    @property
    def secret(self) -> bytes:
        """What the salts of users that do not exist are made from; stored with the first user."""
        if self._secret is None:
            with self._store.reading() as view:
                self._secret = view.kv.get(SECRET_KEY, db=view.tables["meta"]) or secrets.token_bytes(32)
        return self._secret

    # Who a connection is.

    def grants(self, client: ClientInfo) -> Grants | None:
        """What the connection's user may do; None for nobody. A user that was dropped is out here."""
        grants: Grants | None = client.grants
        if grants is None or grants.generation == self.generation:
            return grants
        document = self.user(grants.name)
        if document is None or document.get("userId") != grants.document.get("userId"):
            client.grants = None
            return None
        try:
            grants = self._granted(grants.name, document, client)
        except CommandError:
            grants = None
        client.grants = grants
        return grants

    def log_in(self, client: ClientInfo, name: UserName) -> None:
        """The connection is this user from here on. Raises 18 where restrictions do not permit it, 5626701 and 5626702
        where it is another already."""
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
        client.grants = self._granted(name, document, client)

    def _granted(self, name: UserName, document: dict[str, Any], client: ClientInfo) -> Grants:
        resolved = resolve(roles_of(document), self.role)
        lists = (document.get("authenticationRestrictions") or [], *resolved.restrictions)
        if any(lists) and not restrictions.permitted(lists, *addresses(client)):
            raise CommandError(18, "Authentication failed.")
        return Grants(name, document, resolved, self.generation)

    def log_out(self, client: ClientInfo, db: str) -> None:
        """The connection is nobody any more, if its user is one of that database."""
        grants = self.grants(client)
        if grants is not None and grants.name.db == db:
            client.grants = None
            self.note("logout", client, {"user": grants.name.user, "db": grants.name.db})


def addresses(client: ClientInfo) -> tuple[str, str]:
    """The numeric addresses of both ends of a connection; of a Unix socket none."""
    if isinstance(client.local_address, str):
        return "", ""
    return client.address.rpartition(":")[0].strip("[]"), client.local_address[0]


def stored(view: View, namespace: str, identity: str) -> dict[str, Any] | None:
    """The document of this `_id`, or None."""
    held = located(view, namespace, identity)
    return None if held is None else decode(held[1])


def located(view: View, namespace: str, identity: str) -> tuple[bytes, bytes] | None:
    """(record, raw document) of this `_id`, or None."""
    collection = view.collection(namespace)
    if collection is None or collection.is_view:
        return None
    key = encode({"_id": identity})
    return view.by_id(collection, encode_element(key[4], key[9:-1]))
