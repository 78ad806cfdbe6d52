"""The position that a table stores in the commit of its rows, with its owner; and the progress of a log or a history.

At the start and before each commit, a sink refuses to write the table of another owner. A table of an earlier version
has no owner: the first job that writes it becomes its owner.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from typing import Any, Final, Self

from headrace.spark.rows.events import INVALIDATING, SNAPSHOT_BEGIN, SNAPSHOT_END, SNAPSHOT_KINDS, Row

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
    """The `TableOwner` as text; empty if a program without a job made the table."""
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


class NotOurTable(RuntimeError):
    """The table belongs to another job or another sink, or has rows of another source."""


@dataclass(frozen=True, slots=True)
class TableOwner:
    """The job and the sink that fill a table, and the source of its rows.

    `job` is the id in the job's checkpoint; `histories` is the id of each server's replica set, if known.
    """

    job: str
    name: str
    checkpoint: str
    sink: str
    namespace: str
    histories: Mapping[str, str] = field(default_factory=dict)
    collections: Mapping[str, str] = field(default_factory=dict)
    """The UUID of each server's collection at the start of the job, if known."""

    def text(self) -> str:
        """Return the owner as JSON, as it is stored."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> TableOwner | None:
        """Return the owner from the text that `text` returned; None for an empty text."""
        return cls(**json.loads(text)) if text else None


def check_owner(stored: str, owner: TableOwner | None, table: object) -> None:
    """Raise NotOurTable if the table has another owner than the sink that is about to write it.

    A sink without an owner was made by a program and may write any table. Histories are not compared here: a new
    snapshot corrects the rows of an earlier history.
    """
    before = TableOwner.of(stored)
    if before is None or owner is None:
        return
    if before.sink != owner.sink:
        raise NotOurTable(
            f"{table} is a table of the sink {before.sink!r} of the job {before.name}, not of {owner.sink!r}: "
            "give each sink a path of its own"
        )
    if before.job != owner.job:
        raise NotOurTable(
            f"{table} is filled by another job, {before.name} (checkpoint {before.checkpoint}): give this job a table "
            "of its own, or remove that one with `headrace pipeline reset --data`"
        )
    if before.namespace != owner.namespace:
        raise NotOurTable(
            f"{table} has the rows of {_shown(before.namespace)}, and the job reads {_shown(owner.namespace)}: give it "
            "a checkpoint and tables of its own, or begin again with `headrace pipeline reset --data`"
        )


def check_servers(*, has_several: bool, has_rows: bool, reads_several: bool, table: object) -> None:
    """Raise NotOurTable if the table has rows of one server and the source reads several, or the reverse."""
    if has_rows and has_several != reads_several:
        before, now = ("several", "one") if has_several else ("one", "several")
        raise NotOurTable(
            f"{table} has the rows of {before} server{'s' * has_several}, and the job reads {now}: give it a "
            "checkpoint and tables of its own, or begin again with `headrace pipeline reset --data`"
        )


def _shown(namespace: str) -> str:
    return namespace or "the whole deployment"


IDENTITY = ("operationType", "token", "documentKey", "server")
RowIdentity = tuple[str | None, str, str | None, str | None]


@dataclass(frozen=True, slots=True)
class Progress(TablePosition):
    """The position of a log or a history. The last snapshot began at `begun`; it is complete if `ended` is not empty.

    While a snapshot is repeated, `again` is the token at which it began; otherwise it is empty. `earlier` has the
    beginnings and ends of the complete snapshots before the last. `source` is the fingerprint of the rows' stream, if
    known.
    """

    begun: str = ""
    ended: str = ""
    again: str = ""
    earlier: tuple[tuple[str, str], ...] = ()
    source: str = ""
    removed: str = ""
    """Rows with tokens before this one were removed as too old; empty if none were."""

    @property
    def in_snapshot(self) -> bool:
        """Whether a snapshot has begun and is not complete."""
        return bool(self.begun) and not self.ended

    def snapshots(self) -> tuple[tuple[str, str], ...]:
        """Return the beginnings and ends of all complete snapshots, in order."""
        return (*self.earlier, (self.begun, self.ended)) if self.ended else self.earlier

    def begins(self, token: str) -> Progress:
        """Return the progress after a new snapshot has begun at `token`."""
        token_now = max(self.token, token)
        return replace(self, begun=token, ended="", again="", token=token_now, earlier=self.snapshots())

    def oldest_snapshot_begin(self) -> str:
        """Return the token of the first row that a last snapshot of any server may have."""
        return min((progress.begun for progress in self.servers.values()), default=self.begun)


def identity(row: Row) -> RowIdentity:
    """Return the identity of a row of a snapshot."""
    return (row.operationType, row.token, row.documentKey, row.server)


class Sieve:
    """Decides which rows are new to an append-only target, in token order, and tracks the progress.

    Such a target cannot be emptied and filled again, as a mirror is when a snapshot begins. So snapshots are identified
    by the token at which they began. The rule for a row:

    - An event is new if its token is greater than the last event's.
    - `snapshotBegin` is new if its token is greater than that of the last snapshot.
    - The rows of a snapshot are new if their snapshot is new. A new query may repeat a snapshot after the checkpoint
      was lost. If nothing was written after that snapshot's rows, a repeated row is new if the target lacks it. If that
      snapshot was complete, no row is new.

    With several servers each has its own progress, because their tokens cannot be compared. A row is judged by the
    progress of its server.

    `present` has the identities of the snapshot rows in the target; it is needed only if `may_be_present`.
    """

    def __init__(self, progress: Progress, present: Collection[RowIdentity] = ()) -> None:
        self.progress = progress
        self.event_count = 0
        self._present = present

    def is_new(self, row: Row) -> bool:
        """Whether the target lacks the row. Call this once for each row, in order."""
        now = self.progress.of_server(row.server)
        if row.operationType in SNAPSHOT_KINDS:
            behind, new = self._snapshot(now, row)
            self.progress = self.progress.with_server(row.server, behind)
            return new
        if row.token <= now.token:
            return False
        self.progress = self.progress.with_server(row.server, replace(now, token=row.token))
        self.event_count += 1
        return True

    def _snapshot(self, now: Progress, row: Row) -> tuple[Progress, bool]:
        """Return the progress after a row of a snapshot, and whether the row is new."""
        if row.operationType == SNAPSHOT_BEGIN:
            return (now.begins(row.token), True) if row.token > now.begun else (replace(now, again=row.token), False)
        last = now.again in {"", now.begun}
        new = not now.again or (last and not now.ended and identity(row) not in self._present)
        if row.operationType == SNAPSHOT_END:
            return replace(now, ended=now.ended or (row.token if last else ""), again=""), new
        return now, new


def may_be_present(rows: Sequence[Row], progress: Progress) -> bool:
    """Whether the target may have some of these snapshot rows, so that the sieve needs their identities."""
    return any(
        _may_be_present((row for row in rows if row.server == server), progress.of_server(server))
        for server in {row.server for row in rows}
    )


def _may_be_present(rows: Iterable[Row], now: Progress) -> bool:
    again = now.again or any(row.operationType == SNAPSHOT_BEGIN and row.token <= now.begun for row in rows)
    return bool(again) and not now.ended
