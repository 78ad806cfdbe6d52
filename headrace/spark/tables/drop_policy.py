"""The policies of a table for a drop, a rename or an invalidate of its collection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Self

from headrace.spark.rows.events import INVALIDATING, Row
from headrace.spark.tables.position import TablePosition

POLICIES: Final = ("fail", "follow", "keep")
"""`fail`: stop before writing anything of the batch. `follow`: do as the collection did. `keep`: keep the rows."""


class CollectionGone(RuntimeError):
    """The collection was dropped or renamed, and the policy is `fail`. Nothing of the batch was written."""

    @classmethod
    def by(cls, row: Row) -> Self:
        """Return the error for a row that is a drop, a rename or an invalidate."""
        return cls(f"{row.operationType} of {row.database}.{row.collection} at {row.token}")


def check_not_gone(rows: Iterable[Row], position: TablePosition) -> None:
    """Raise CollectionGone if a row after the position is a drop, a rename or an invalidate."""
    for row in rows:
        if row.operationType in INVALIDATING and row.token > position.of_server(row.server).token:
            raise CollectionGone.by(row)


def checked_policy(policy: str) -> str:
    """Return `policy`; raise ValueError if it is unknown."""
    if policy not in POLICIES:
        raise ValueError(f"the policy for a drop or a rename is one of {', '.join(POLICIES)}, not {policy!r}")
    return policy
