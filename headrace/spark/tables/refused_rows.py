"""Rows that a sink refuses, and the rows after them.

A document whose update was refused no longer equals the source's. Its further updates are refused, too, until a row
brings the whole document (an insert, a replacement, a row of a snapshot, an update with `fullDocument`) or deletes it.

A server refuses documents only when they are written. Such a target reports the outcome of a commit (`CommitOutcome`)
after its writes, and before its position says that they are done. So a repeated batch refuses the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.spark.rows.events import DOCUMENT_OPERATIONS, INVALIDATING, SNAPSHOT, Row
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.key_identity import key_identity


class RowRefused(RuntimeError):
    """A sink cannot take the row with this token. It has committed nothing of the batch."""

    def __init__(self, message: str, token: str = "") -> None:
        super().__init__(message)
        self.token = token


@dataclass(frozen=True, slots=True)
class RefusedWrite:
    """A document that a server refused: its key's text, the token of the last row that changed it, and the reason."""

    key: str
    token: str
    reason: str


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """The outcome of a commit: the keys of accepted documents, with their rows' tokens, and the refused documents."""

    accepted: Mapping[str, str]
    refused: Sequence[RefusedWrite]


@dataclass(slots=True)
class RefusedRows:
    """The keys, by identity, whose documents wait for a row that brings them; and the refused rows.

    `reasons` has the sink's reasons by the token of the row. `marked` has the reasons of rows that came with a mark in
    place of a document, by the row's number. The sink has applied the events up to `done`: it gets them unchanged, and
    they change no waiting key.
    """

    waiting: set[str] = field(default_factory=set)
    done: str = ""
    reasons: dict[str, str] = field(default_factory=dict)
    marked: dict[int, str] = field(default_factory=dict)

    def reason(self, number: int, row: Row) -> str:
        """Return why row `number` is refused."""
        waits = "the document waits for a row that brings it as it is"
        return self.marked.get(number) or self.reasons.get(row.token, waits)

    def divided(self, rows: Sequence[Row]) -> Division:
        """Divide the rows, which are in token order, into the sink's rows and the refused rows."""
        waiting = set(self.waiting)
        division = Division([], [], waiting)
        for number, row in enumerate(rows):
            if row.token <= self.done and row.operationType != SNAPSHOT:
                division.taken.append(number)
                continue
            identity = identity_of(row)
            refused = number in self.marked or (row.token in self.reasons and row.operationType != SNAPSHOT)
            if row.operationType in INVALIDATING:
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
    """The numbers of the rows for the sink and of the refused rows, and the keys that wait after them."""

    taken: list[int]
    refused: list[int]
    waiting: set[str]


def identity_of(row: Row) -> str | None:
    """Return the identity of the key of the row's document; None if the row is about no document."""
    if row.operationType not in DOCUMENT_OPERATIONS or not row.documentKey:
        return None
    return key_identity(dumps(loads(row.documentKey)["_id"]))
