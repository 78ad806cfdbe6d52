"""The progress of an append-only target, and the rule for which rows of a batch are new to it.

An append-only target cannot be emptied and filled again, as a mirror is when a snapshot begins. So snapshots are
identified by the token at which they began. The rule for a row:

- An event is new if its token is greater than the last event's.
- `snapshotBegin` is new if its token is greater than that of the last snapshot.
- The rows of a snapshot are new if their snapshot is new. A new query may repeat a snapshot after the checkpoint was
lost. If nothing was written after that snapshot's rows, a repeated row is new if the target lacks it. If that snapshot
was complete, no row is new.

With several servers each has its own progress, because their tokens cannot be compared. A row is judged by the progress
of its server.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from headrace.spark.rows.events import SNAPSHOT_BEGIN, SNAPSHOT_END, SNAPSHOT_KINDS, Row
from headrace.spark.tables.position import TablePosition

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
    """Decides which rows are new, in token order, and tracks the progress.

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
