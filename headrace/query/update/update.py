"""What an update is once parsed, and what applying it to a document gives.

Rule: an `Update` is never changed by being applied, so that one may be kept and used for many documents and
commands. The document given to `apply` is not changed either; the new one shares what was not touched with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from bson import Timestamp

Kind = Literal["operators", "pipeline", "replacement"]


@dataclass(frozen=True, slots=True)
class Diff:
    """The oplog keeps a difference: `entry` is the whole `o`, {$v: 2, diff: {…}}."""

    entry: dict[str, Any]

    @property
    def diff(self) -> dict[str, Any]:
        return self.entry["diff"]  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Replaced:
    """The oplog keeps the whole new document."""


REPLACED: Final = Replaced()


@dataclass(frozen=True, slots=True)
class Applied:
    """The new document, and how the oplog tells of it; `change` None means that nothing changed.

    For a document that is being inserted `change` means nothing.
    """

    document: dict[str, Any]
    change: Diff | Replaced | None


class Update:
    """A parsed update of one of three kinds."""

    __slots__ = ()
    kind: ClassVar[Kind]

    @property
    def needs_position(self) -> bool:
        """Whether `apply` wants `positional`: the array index that the filter matched, for `$` in paths."""
        return False

    def apply(
        self,
        document: dict[str, Any],
        *,
        positional: str | None = None,
        now_ms: int,
        timestamp: Timestamp,
        inserting: bool = False,
    ) -> Applied:
        """The document after the update, `_id` first. `inserting`: an upsert is making it ($setOnInsert counts).

        Raises `CommandError`: 2, 14, 28, 34, 40, 66 and what expressions raise. Checks the depth of what it makes
        (15); whoever encodes the new document checks its size.
        """
        raise NotImplementedError
