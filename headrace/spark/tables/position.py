"""The position that a table stores in the commit of its rows: what mirrors, histories and logs have in common."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from typing import Any, Final, Self

from headrace.spark.rows.events import INVALIDATING, Row

STATE_KEY: Final = "headrace"
"""The key of the position in a commit's metadata."""


class NotAMirror(RuntimeError):
    """The table belongs to another kind of sink, or another program wrote it."""


@dataclass(frozen=True, slots=True)
class TablePosition:
    """Every event up to `token` is applied. The last batch was `batch` of the query `query`.

    With several servers, `servers` has the position of each by its name, and `token` is the last token of all.
    """

    token: str = ""
    _: KW_ONLY
    query: str = ""
    batch: int = -1
    servers: Mapping[str, Self] = field(default_factory=dict)
    owner: str = ""
    """The owner of the table (`table_owner.py`); empty if a program without a job made it."""
    leftovers: bool = False
    """Whether the table may still have rows of a collection that is gone (`sinks/folding_sink.py`)."""

    def has(self, query: str, batch: int) -> bool:
        """Whether this batch of this query is committed."""
        return self.query == query and batch <= self.batch

    def of_server(self, server: str | None) -> Self:
        """Return the position for rows of this server; None or an empty name stands for the only server."""
        return (self.servers.get(server) or type(self)()) if server else self

    def with_server(self, server: str | None, position: Self) -> Self:
        """Return the position with `position` as the position of this server."""
        if not server:
            return position
        return replace(self, token=max(self.token, position.token), servers={**self.servers, server: position})

    def text(self) -> str:
        """Return the position as JSON, as it is stored."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the position from the text that `text` returned; the first one for an empty text. Raise NotAMirror."""
        return cls._of(json.loads(text or "{}"))

    @classmethod
    def _of(cls, given: dict[str, Any]) -> Self:
        if unknown := given.keys() - cls.__dataclass_fields__.keys():
            raise NotAMirror(f"the table is another sink's: its position has {', '.join(sorted(unknown))}")
        servers = {name: cls._of(each) for name, each in given.get("servers", {}).items()}
        # JSON has lists for tuples.
        tuples = {name: tuple(map(tuple, value)) for name, value in given.items() if isinstance(value, list)}
        return cls(**given | tuples | {"servers": servers})


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
