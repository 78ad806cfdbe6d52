"""How far an append-only target is, and which rows of a batch are new to it.

A target that only grows cannot be emptied and filled again, as a mirror can when a snapshot begins. So it tells
snapshots apart by the token at which they began, and this is the rule for a row:

- an event is new when its token is greater than the last one's;
- `snapshotBegin` is new when its token is greater than that of the last snapshot;
- the rows of a snapshot are new with their snapshot. Given again (a query that was lost in the middle of its snapshot,
  and nothing was written since), they are new when the target does not have them; when that snapshot was complete,
  none is.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace

from headrace.spark.rows.events import SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END, Row

_SNAPSHOTS = frozenset({SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END})

Identity = tuple[str | None, str, str | None]


@dataclass(frozen=True, slots=True)
class Progress:
    """Every event up to `token` is in. The last snapshot began at `begun`, and is complete if `ended` is not empty.

    `again` is not empty while a snapshot is being given a second time: the token at which that one began. `earlier` are
    the beginnings and ends of the complete snapshots before the last one.
    """

    token: str = ""
    begun: str = ""
    ended: str = ""
    again: str = ""
    query: str = ""
    batch: int = -1
    earlier: tuple[tuple[str, str], ...] = ()

    def has(self, query: str, batch: int) -> bool:
        return self.query == query and batch <= self.batch

    def snapshots(self) -> tuple[tuple[str, str], ...]:
        """The beginnings and ends of all complete snapshots, in order."""
        return (*self.earlier, (self.begun, self.ended)) if self.ended else self.earlier

    def begins(self, token: str) -> Progress:
        """The progress when a new snapshot has begun at `token`."""
        token_now = max(self.token, token)
        return replace(self, begun=token, ended="", again="", token=token_now, earlier=self.snapshots())

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Progress:
        given = json.loads(text)
        return cls(**given | {"earlier": tuple(tuple(each) for each in given.get("earlier", ()))})


def identity(row: Row) -> Identity:
    """What tells a row of a snapshot from all others."""
    return (row.operationType, row.token, row.documentKey)


class Sieve:
    """Lets the new rows through, in the order of their tokens, and keeps count of the progress."""

    def __init__(self, progress: Progress, present: Collection[Identity] = ()) -> None:
        self.progress = progress
        self.event_count = 0
        self._present = present

    def is_new(self, row: Row) -> bool:
        """Whether the row is to be taken; asked once for each, in order."""
        if row.operationType in _SNAPSHOTS:
            return self._snapshot(row)
        if row.token <= self.progress.token:
            return False
        self.progress = replace(self.progress, token=row.token)
        self.event_count += 1
        return True

    def _snapshot(self, row: Row) -> bool:
        now = self.progress
        if row.operationType == SNAPSHOT_BEGIN and row.token > now.begun:
            self.progress = now.begins(row.token)
            return True
        if row.operationType == SNAPSHOT_BEGIN:
            self.progress = replace(now, again=row.token)
            return False
        last = now.again in {"", now.begun}
        new = not now.again or (last and not now.ended and identity(row) not in self._present)
        if row.operationType == SNAPSHOT_END:
            self.progress = replace(now, ended=now.ended or (row.token if last else ""), again="")
        return new


def may_be_present(rows: Sequence[Row], progress: Progress) -> bool:
    """Whether rows of a snapshot may be in already, so that the sieve must be told which."""
    again = progress.again or any(row.operationType == SNAPSHOT_BEGIN and row.token <= progress.begun for row in rows)
    return bool(again) and not progress.ended
