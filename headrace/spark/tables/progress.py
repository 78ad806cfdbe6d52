"""How far an append-only target is, and which rows of a batch are new to it.

An append-only target cannot be emptied and filled again, as a mirror can when a snapshot begins. So snapshots are
identified by the token at which they began, and this is the rule for a row:

- an event is new when its token is greater than the last one's;
- `snapshotBegin` is new when its token is greater than that of the last snapshot;
- the rows of a snapshot are new with their snapshot. Repeated (by a new query after the checkpoint was lost within a
  snapshot, and nothing was written since), they are new when the target does not have them; when that snapshot was
  complete, none is.

Of several servers each has a progress of its own, since their tokens do not follow one another: a row is judged by its
server's.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from headrace.spark.rows.events import SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END, Row

_SNAPSHOTS = frozenset({SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END})

IDENTITY = ("operationType", "token", "documentKey", "server")
RowIdentity = tuple[str | None, str, str | None, str | None]


class OtherPosition(RuntimeError):
    """The error of a table whose stored position is another kind of sink's: the table is not this sink's."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Every event up to `token` is in. The last snapshot began at `begun`, and is complete if `ended` is not empty.

    `again` is not empty while a snapshot is being given a second time: the token at which that one began. `earlier` are
    the beginnings and ends of the complete snapshots before the last one. Of several servers, `servers` has each one's;
    `token` is then the last of all. `source` says which stream the rows are of, if that is known.
    """

    token: str = ""
    begun: str = ""
    ended: str = ""
    again: str = ""
    query: str = ""
    batch: int = -1
    earlier: tuple[tuple[str, str], ...] = ()
    servers: Mapping[str, Progress] = field(default_factory=dict)
    source: str = ""
    owner: str = ""
    """The owner of the table (`table_owner.py`); empty if a program without a job made it."""
    leftovers: bool = False
    """Whether versions of a collection that is gone may be among those that are open (`leftover_keys.py`)."""
    removed: str = ""
    """Rows with tokens before this one were removed as too old; empty if none were."""

    @property
    def in_snapshot(self) -> bool:
        """Whether a snapshot has begun and is not complete."""
        return bool(self.begun) and not self.ended

    def has(self, query: str, batch: int) -> bool:
        """Whether this batch of this query is committed."""
        return self.query == query and batch <= self.batch

    def snapshots(self) -> tuple[tuple[str, str], ...]:
        """The beginnings and ends of all complete snapshots, in order."""
        return (*self.earlier, (self.begun, self.ended)) if self.ended else self.earlier

    def begins(self, token: str) -> Progress:
        """The progress when a new snapshot has begun at `token`."""
        token_now = max(self.token, token)
        return replace(self, begun=token, ended="", again="", token=token_now, earlier=self.snapshots())

    def of_server(self, server: str | None) -> Progress:
        """The progress by which a row of this server is judged; None: of the only one."""
        return self if server is None else self.servers.get(server, _NOTHING)

    def with_server(self, server: str | None, progress: Progress) -> Progress:
        """The progress when that of this server is `own`."""
        if server is None:
            return progress
        return replace(self, token=max(self.token, progress.token), servers={**self.servers, server: progress})

    def oldest_snapshot_begin(self) -> str:
        """The token from which on rows of the last snapshots are."""
        return min((progress.begun for progress in self.servers.values()), default=self.begun)

    def text(self) -> str:
        """The progress as JSON, to store with the data."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Progress:
        """The progress that `text` made the text of."""
        given = json.loads(text)
        if unknown := given.keys() - cls.__dataclass_fields__.keys():
            raise OtherPosition(f"a position with {', '.join(sorted(unknown))} is not that of a log or a history")
        return cls._of(given)

    @classmethod
    def _of(cls, given: dict[str, Any]) -> Progress:
        earlier = tuple(tuple(each) for each in given.pop("earlier", ()))
        servers = {name: cls._of(progress) for name, progress in given.pop("servers", {}).items()}
        return cls(**given, earlier=earlier, servers=servers)


_NOTHING = Progress()


def identity(row: Row) -> RowIdentity:
    """The identity of a row of a snapshot."""
    return (row.operationType, row.token, row.documentKey, row.server)


class Sieve:
    """Decides which rows are new, in the order of their tokens, and tracks the progress.

    `present` are the identities of snapshots' rows that the target has, needed only if `may_be_present`.
    """

    def __init__(self, progress: Progress, present: Collection[RowIdentity] = ()) -> None:
        self.progress = progress
        self.event_count = 0
        self._present = present

    def is_new(self, row: Row) -> bool:
        """Whether the target lacks the row; to be called once for each, in order."""
        now = self.progress.of_server(row.server)
        if row.operationType in _SNAPSHOTS:
            behind, new = self._snapshot(now, row)
            self.progress = self.progress.with_server(row.server, behind)
            return new
        if row.token <= now.token:
            return False
        self.progress = self.progress.with_server(row.server, replace(now, token=row.token))
        self.event_count += 1
        return True

    def _snapshot(self, now: Progress, row: Row) -> tuple[Progress, bool]:
        """The progress after a row of a snapshot, and whether it is new."""
        if row.operationType == SNAPSHOT_BEGIN:
            return (now.begins(row.token), True) if row.token > now.begun else (replace(now, again=row.token), False)
        last = now.again in {"", now.begun}
        new = not now.again or (last and not now.ended and identity(row) not in self._present)
        if row.operationType == SNAPSHOT_END:
            return replace(now, ended=now.ended or (row.token if last else ""), again=""), new
        return now, new


def may_be_present(rows: Sequence[Row], progress: Progress) -> bool:
    """Whether rows of a snapshot may be in already, so that the sieve needs to know which."""
    return any(
        _may_be_present((row for row in rows if row.server == server), progress.of_server(server))
        for server in {row.server for row in rows}
    )


def _may_be_present(rows: Iterable[Row], now: Progress) -> bool:
    again = now.again or any(row.operationType == SNAPSHOT_BEGIN and row.token <= now.begun for row in rows)
    return bool(again) and not now.ended
