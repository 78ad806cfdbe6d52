"""The owner of a table: the job and the sink that fill it, and the source that its rows are from.

It is stored with the table's position, in the same commits. What a sink would write into another one's table is
refused, at the start and before each commit. A table of an earlier version has none: the first job that writes it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


class NotOurTable(RuntimeError):
    """The table is another job's or another sink's, or has rows of another source."""


@dataclass(frozen=True, slots=True)
class TableOwner:
    """`job` is the id that the job's checkpoint has, `histories` the id of each server's replica set, if known."""

    job: str
    name: str
    checkpoint: str
    sink: str
    namespace: str
    histories: Mapping[str, str] = field(default_factory=dict)
    collections: Mapping[str, str] = field(default_factory=dict)
    """The UUID of each server's collection when the job was started, if known."""

    def text(self) -> str:
        """The owner as JSON, as it is stored."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> TableOwner | None:
        """The owner that `text` made the text of; None for an empty text."""
        return cls(**json.loads(text)) if text else None


def check_owner(stored: str, owner: TableOwner | None, table: object) -> None:
    """Raises NotOurTable if the table has another owner than the sink that is about to write it.

    A sink without an owner is one that a program made: it may write any table. Histories are not compared here: a
    snapshot makes rows of an earlier one right.
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
    """Raises NotOurTable if the table has the rows of one server and the source those of several, or the reverse."""
    if has_rows and has_several != reads_several:
        before, now = ("several", "one") if has_several else ("one", "several")
        raise NotOurTable(
            f"{table} has the rows of {before} server{'s' * has_several}, and the job reads {now}: give it a "
            "checkpoint and tables of its own, or begin again with `headrace pipeline reset --data`"
        )


def _shown(namespace: str) -> str:
    return namespace or "the whole deployment"
