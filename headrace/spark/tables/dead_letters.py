"""Dead letters: rows that a sink has refused, in a Delta table, each with its token, its sink and the reason.

    sink, token, key        the sink and the row; `key` identifies the document's key, null for a row without one
    state                   `refused`, or `resolved`: the document came again, or was replayed
    operationType, reason   the operation of the row, and the sink's message
    row                     all columns of the row, as JSON
    at                      when the dead letter was written

Dead letters are written before their batch is committed. A repeated batch finds them in the table.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import write_deltalake

from headrace.spark.tables.delta_files import OpenDeltaTable
from headrace.spark.tables.table_location import location_of

REFUSED: Final = "refused"
RESOLVED: Final = "resolved"
REPLAYED: Final = "replayed"
"""The reason of a letter that a replay resolved."""
SCHEMA: Final = pa.schema(
    [pa.field(name, pa.string()) for name in ("sink", "token", "key", "state", "operationType", "reason", "row")]
    + [pa.field("at", pa.timestamp("us", "UTC"))]
)


class DeadLettersFull(RuntimeError):
    """More rows were refused than the job allows."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row of the table."""

    sink: str
    token: str
    key: str | None
    state: str
    operationType: str | None
    reason: str
    row: str


def row_text(row: dict[str, Any]) -> str:
    """Return a row as JSON: times as ISO 8601, bytes in hexadecimal."""
    return json.dumps(
        row, ensure_ascii=False, default=lambda value: value.hex() if isinstance(value, bytes) else value.isoformat()
    )


class DeadLetters:
    """The table at a path. It is read once and has one writer process, whose threads take turns."""

    def __init__(self, path: str | Path, count_max: int) -> None:
        self._location = location_of(path)
        self._open_table = OpenDeltaTable(self._location)
        self._count_max = count_max
        self._lock = threading.RLock()
        self._letters: dict[tuple[str, str, str | None, str], DeadLetter] | None = None

    def __str__(self) -> str:
        return str(self._location)

    def letters(self) -> list[DeadLetter]:
        """Return all letters in the order in which they were written."""
        with self._lock:
            return list(self._known().values())

    def waiting(self, sink: str, before: str = "~", done: str = "") -> dict[str, DeadLetter]:
        """Return the first letter of each key whose document in the sink differs from the source.

        Omit letters of the token `before` and later, unless the sink has `done` them: they belong to an earlier attempt
        at the batch that begins at `before`.
        """
        waiting: dict[str, DeadLetter] = {}
        for letter in sorted(self.letters(), key=lambda letter: (letter.token, letter.state == RESOLVED)):
            known = letter.token < before or letter.token <= done or letter.reason == REPLAYED
            if letter.sink == sink and letter.key is not None and known:
                if letter.state == RESOLVED:
                    waiting.pop(letter.key, None)
                else:
                    waiting.setdefault(letter.key, letter)
        return waiting

    def refused_count(self) -> int:
        """Return how many rows were refused."""
        return sum(letter.state == REFUSED for letter in self.letters())

    def add(self, letters: Iterable[DeadLetter], at_ms: float) -> int:
        """Write the letters that the table lacks, durably. Return their count. Raise DeadLettersFull if there are too
        many."""
        with self._lock:
            return self._add(letters, at_ms)

    def _add(self, letters: Iterable[DeadLetter], at_ms: float) -> int:
        known = self._known()
        new = {_identity(letter): letter for letter in letters if _identity(letter) not in known}
        if not new:
            return 0
        refused = sum(letter.state == REFUSED for letter in new.values())
        if refused and self.refused_count() + refused > self._count_max:
            raise DeadLettersFull(
                f"{self} has {self.refused_count()} rows, and {refused} more were refused: the job allows "
                f"{self._count_max} (deadletter_max). The first: {next(iter(new.values())).reason}"
            )
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
        rows: list[dict[str, Any]] = [asdict(letter) | {"at": moment} for letter in new.values()]
        self._location.create()
        into = self._open_table.now() or self._location.url
        write_deltalake(into, pa.Table.from_pylist(rows, schema=SCHEMA), mode="append")
        known |= new
        return refused

    def _known(self) -> dict[tuple[str, str, str | None, str], DeadLetter]:
        if self._letters is None:
            table = self._open_table.now()
            names = [name for name in SCHEMA.names if name != "at"]
            rows = table.to_pyarrow_table().sort_by("at").select(names).to_pylist() if table else []
            self._letters = {_identity(letter): letter for letter in (DeadLetter(**row) for row in rows)}
        return self._letters


def _identity(letter: DeadLetter) -> tuple[str, str, str | None, str]:
    return letter.sink, letter.token, letter.key, letter.state
