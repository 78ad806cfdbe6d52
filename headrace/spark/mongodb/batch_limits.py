"""The limits of a micro-batch, and where one ends."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.spark.rows.tokens import Token


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """At most so many rows, and so many bytes of events; one event is always within."""

    rows: int | None = None
    bytes: int | None = None

    def __bool__(self) -> bool:
        return self.rows is not None or self.bytes is not None


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """The end of the next batch; `rows` events lie before it, at least, and an invalidate is its last if `closed`."""

    token: Token
    rows: int = 0
    closed: bool = False
