"""The interface of a parsed update, and the result of applying it to a document.

Rule: applying an `Update` does not change it, so it can be cached and used for many documents and commands. `apply`
does not change the given document either. The new document shares the unchanged values with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple

from bson import Timestamp

UpdateKind = Literal["operators", "pipeline", "replacement"]


@dataclass(frozen=True, slots=True)
class UpdateContext:
    """The inputs of an update besides the document.

    `now_ms` is the wall clock in milliseconds since the epoch ($currentDate as a date, NOW). `timestamp` is the cluster
    time ($currentDate as a timestamp, CLUSTER_TIME). `positional` is the array index that the filter matched, for `$`
    in paths; needed if `Update.needs_position`. `inserting`: the document is made by an upsert ($setOnInsert applies).
    """

    now_ms: int
    timestamp: Timestamp
    positional: str | None = None
    inserting: bool = False


class Diff(NamedTuple):
    """The oplog records a difference: `entry` is the complete `o`, {$v: 2, diff: {…}}."""

    entry: dict[str, Any]

    @property
    def diff(self) -> dict[str, Any]:
        """The diff without `$v`; see `query/diff.py` for its format."""
        return self.entry["diff"]  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Replaced:
    """The oplog records the complete new document."""


REPLACED: Final = Replaced()


class Applied(NamedTuple):
    """The new document, and the change that the oplog records; `change` is None if nothing changed.

    When inserting, `change` is undefined.
    """

    document: dict[str, Any]
    change: Diff | Replaced | None


class Update:
    """A parsed update: by operators, by a pipeline, or a replacement."""

    __slots__ = ()
    kind: ClassVar[UpdateKind]

    @property
    def needs_position(self) -> bool:
        """Whether a path contains `$`, so that `apply` needs `UpdateContext.positional`."""
        return False

    @property
    def fields(self) -> frozenset[str] | None:
        """The top-level fields that the update reads and may change; None if it may use any."""
        return None

    def apply(self, document: dict[str, Any], context: UpdateContext) -> Applied:
        """The document after the update, with `_id` first.

        Raises `CommandError` 2, 14, 28, 34, 40, 66, 15 for a document nested too deeply, and the errors of expressions.
        The caller encodes the new document and checks its size.
        """
        raise NotImplementedError

    def apply_raw(self, document: bytes, context: UpdateContext) -> tuple[bytes, bytes] | None:
        """Return the raw document after the update and the `o` of its entry, which is empty if nothing changes.

        None: `apply` must decide. The rest of the document is copied, and its size is not checked.
        """
        return None
