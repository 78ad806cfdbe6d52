"""Names of users and of roles: a name in a database."""

from __future__ import annotations

from typing import Final, NamedTuple

EXTERNAL: Final = "$external"
"""The database of users whose credentials are elsewhere: in a certificate."""


class UserName(NamedTuple):
    """A user; `db` is the database that it is created in and that clients give as `authSource`."""

    user: str
    db: str

    @property
    def id(self) -> str:
        """`_id` in `admin.system.users`."""
        return f"{self.db}.{self.user}"

    @property
    def text(self) -> str:
        """As messages name it: `user@db`."""
        return f"{self.user}@{self.db}"


class RoleName(NamedTuple):
    """A role, built-in or user-defined, of a database."""

    role: str
    db: str

    @property
    def id(self) -> str:
        """`_id` in `admin.system.roles`."""
        return f"{self.db}.{self.role}"

    @property
    def text(self) -> str:
        """As messages name it: `role@db`."""
        return f"{self.role}@{self.db}"

    @property
    def document(self) -> dict[str, str]:
        """As documents have it."""
        return {"role": self.role, "db": self.db}
