"""The limits and the end of a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.spark.rows.tokens import Token


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The most rows and bytes of events (as BSON) of a micro-batch; None: unlimited. One event is always allowed."""

    rows: int | None = None
    bytes: int | None = None

    def __bool__(self) -> bool:
        return self.rows is not None or self.bytes is not None


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """The end of a micro-batch: it has at least `rows` events, and its last event is an invalidate if `closed`."""

    token: Token
    rows: int = 0
    closed: bool = False
