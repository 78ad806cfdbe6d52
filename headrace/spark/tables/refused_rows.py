"""Rows that a sink refuses, and what becomes of the rows after them.

A document whose update was refused is not as the source's any more: further updates of it are refused as well, until a
row brings it as it is (an insert, a replacement, a row of a snapshot, an update with `fullDocument`), or takes it away.

A server refuses documents only as they come. Such a target says what became of a commit (`CommitOutcome`) behind
its writes, and before its position says that they are done: so a repeated batch finds the same rows refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from headrace.spark.rows.events import SNAPSHOT, Row
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.key_identity import key_identity

_DOCUMENT_OPERATIONS = frozenset({"delete", "insert", "replace", "update", SNAPSHOT})
_ENDING = frozenset({"drop", "dropDatabase", "invalidate", "rename"})


class RowRefused(RuntimeError):
    """A sink cannot take the row with this token, and has committed nothing of its batch."""

    def __init__(self, message: str, token: str = "") -> None:
        super().__init__(message)
        self.token = token


@dataclass(frozen=True, slots=True)
class RefusedWrite:
    """A document that a server refused: its key's text, the token of the row that made it what it is, the reason."""

    key: str
    token: str
    reason: str


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """The outcome of a commit: the keys of the documents that were accepted, with their rows' tokens; the others."""

    accepted: Mapping[str, str]
    refused: Sequence[RefusedWrite]


@runtime_checkable
class RefusesAsItWrites(Protocol):
    """A table that knows only by writing what is refused. Without `on_outcome` a refusal is a CommitRefused."""

    on_outcome: Callable[[CommitOutcome], object] | None


@dataclass(slots=True)
class RefusedRows:
    """The keys, by their identity, whose documents wait for a row that brings them, and the tokens that were refused.

    `reasons` are the sink's, by the token of the row; `marked` those of rows that came with a mark in place of a
    document, by their numbers. Events up to `done` are in the sink already: they are given to it
    as they are, and say nothing.
    """

    waiting: set[str] = field(default_factory=set)
    done: str = ""
    reasons: dict[str, str] = field(default_factory=dict)
    marked: dict[int, str] = field(default_factory=dict)

    def reason(self, number: int, row: Row) -> str:
        """Why row `number` is refused."""
        waits = "the document waits for a row that brings it as it is"
        return self.marked.get(number) or self.reasons.get(row.token, waits)

    def divided(self, rows: Sequence[Row]) -> Division:
        """Which of the rows, in the order of their tokens, the sink is to get."""
        waiting = set(self.waiting)
        division = Division([], [], waiting)
        for number, row in enumerate(rows):
            if row.token <= self.done and row.operationType != SNAPSHOT:
                division.taken.append(number)
                continue
            identity = identity_of(row)
            refused = number in self.marked or (row.token in self.reasons and row.operationType != SNAPSHOT)
            if row.operationType in _ENDING:
                waiting.clear()
            elif identity and (row.operationType == "delete" or row.fullDocument is not None) and not refused:
                waiting.discard(identity)
            if refused or (identity and identity in waiting):
                division.refused.append(number)
                if identity:
                    waiting.add(identity)
            else:
                division.taken.append(number)
        return division


@dataclass(frozen=True, slots=True)
class Division:
    """The numbers of the rows for the sink, and of those refused; the keys that wait after them."""

    taken: list[int]
    refused: list[int]
    waiting: set[str]


def identity_of(row: Row) -> str | None:
    """The identity of the key of the row's document; None if it is about none."""
    if row.operationType not in _DOCUMENT_OPERATIONS or not row.documentKey:
        return None
    return key_identity(dumps(loads(row.documentKey)["_id"]))
