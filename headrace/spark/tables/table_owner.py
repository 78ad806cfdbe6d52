"""The owner of a table: the job and the sink that fill it, and the source of its rows.

The owner is stored with the table's position, in the same commits. At the start and before each commit, a sink refuses
to write the table of another owner. A table of an earlier version has no owner: the first job that writes it becomes
its owner.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


class NotOurTable(RuntimeError):
    """The table belongs to another job or another sink, or has rows of another source."""


@dataclass(frozen=True, slots=True)
class TableOwner:
    """`job` is the id in the job's checkpoint; `histories` is the id of each server's replica set, if known."""

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
