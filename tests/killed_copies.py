"""The process ends in the middle of a command that copies a collection."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.execution.writes.output import drop_temporary, left_behind
from headrace.testing.driven import DrivenServer


class Killed(BaseException):
    """The process ends."""


def temporary_after_kill(server: DrivenServer, database: str, body: dict[str, Any]) -> str:
    """Kill the server at the command's 20th pause, and start it again. Return the name of the one temporary collection
    that was left, after it was dropped."""

    def between(pauses: int) -> None:
        if pauses == 20:
            raise Killed

    with pytest.raises(Killed):
        server.in_turns(database, body, between)
    server.restart()
    (left,) = left_behind(server.engine)
    drop_temporary(txn := server.store.begin(), [left])
    server.store.commit(txn)
    return left
