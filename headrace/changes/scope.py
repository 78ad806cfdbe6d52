"""The scope of a stream: one collection, one database, or the deployment; and the namespaces that belong to it.

Rule (which namespaces a scope has):

    collection   exactly `db.coll`, whatever its name
    database     `db.*`, except names that begin with `$` or `system.`
    deployment   `*.*`, except the databases admin, config and local, and the same names

`showSystemEvents` also includes `system.js`, `system.views`, `system.buckets.*` and `system.resharding.*`. A name that
only starts with `system`, without the dot, is an ordinary name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

INTERNAL_DATABASES: Final = frozenset({"admin", "config", "local"})
VIEWS: Final = "system.views"


class ScopeKind(Enum):
    """The kinds of scope."""

    COLLECTION = "collection"
    DATABASE = "database"
    DEPLOYMENT = "deployment"


@dataclass(frozen=True, slots=True)
class Scope:
    """The namespaces of one stream. `coll` is set only for a collection; `db` is "admin" for the deployment."""

    kind: ScopeKind
    db: str
    coll: str | None = None
    show_system: bool = False

    @property
    def cursor_namespace(self) -> str:
        """The namespace of the stream's cursor, in replies and in getMore."""
        return f"{self.db}.{self.coll if self.coll is not None else '$cmd.aggregate'}"

    @property
    def is_collection(self) -> bool:
        """Whether the scope is one collection."""
        return self.kind is ScopeKind.COLLECTION

    def matches(self, namespace: str) -> bool:
        """Return whether changes of the collection `namespace` ("db.coll") are in this scope."""
        if self.kind is ScopeKind.COLLECTION:
            return namespace == f"{self.db}.{self.coll}"
        db, _, coll = namespace.partition(".")
        return self.matches_database(db) and bool(coll) and not is_hidden(coll, self.show_system)

    def matches_database(self, db: str) -> bool:
        """Return whether a `dropDatabase` of `db` is in this scope. It never is in a collection's stream."""
        if self.kind is ScopeKind.DATABASE:
            return db == self.db
        return self.kind is ScopeKind.DEPLOYMENT and db not in INTERNAL_DATABASES


def is_hidden(coll: str, show_system: bool) -> bool:
    """Return whether streams of a database or the deployment leave out a collection with this name."""
    if coll.startswith("$"):
        return True
    if not coll.startswith("system."):
        return False
    rest = coll[7:]
    return not (show_system and (rest in ("js", "views") or rest.startswith(("buckets.", "resharding."))))
