"""Names of users and roles: a name in a database."""

from __future__ import annotations

from typing import Final, NamedTuple

EXTERNAL: Final = "$external"
"""The database of users whose credentials are in a certificate."""


class UserName(NamedTuple):
    """A user. `db` is the database in which it was created and which clients give as `authSource`."""

    user: str
    db: str

    @property
    def id(self) -> str:
        """The `_id` in `admin.system.users`."""
        return f"{self.db}.{self.user}"

    @property
    def text(self) -> str:
        """The name in messages: `user@db`."""
        return f"{self.user}@{self.db}"


class RoleName(NamedTuple):
    """A built-in or user-defined role of a database."""

    role: str
    db: str

    @property
    def id(self) -> str:
        """The `_id` in `admin.system.roles`."""
        return f"{self.db}.{self.role}"

    @property
    def text(self) -> str:
        """The name in messages: `role@db`."""
        return f"{self.role}@{self.db}"

    @property
    def document(self) -> dict[str, str]:
        """The name in documents: `{role, db}`."""
        return {"role": self.role, "db": self.db}
