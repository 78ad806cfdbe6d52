"""Requests of monitoring tools: the commands that answer none, and the sections of serverStatus that they read."""

from __future__ import annotations

import pytest

from headrace import limits
from headrace.dispatch.access import AccessEvent
from headrace.errors import CommandError
from headrace.testing.driven import DrivenServer


def test_the_sections_that_tools_read() -> None:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": number} for number in range(9)]})
        assert server.run("t", {"find": "c", "filter": {"$none": 1}})["ok"] == 0  # type: ignore[index]
        server.must("t", {"find": "c", "batchSize": 2})
        server.must("t", {"find": "c", "batchSize": 2, "noCursorTimeout": True})
        status = server.must("admin", {"serverStatus": 1})
        assert status["asserts"]["user"] == 1 and status["metrics"]["cursor"]["open"] == {"noTimeout": 1, "total": 2}
        assert status["globalLock"]["activeClients"] == {"total": 1, "readers": 1, "writers": 0}
        assert (
            status["globalLock"]["currentQueue"]["total"] == 0 and status["mem"]["virtual"] > status["mem"]["resident"]
        )
        data = server.must("admin", {"getDiagnosticData": 1})["data"]
        assert data["start"] <= data["end"] and data["serverStatus"]["opcounters"]["insert"] == 9


def test_what_is_not_here_is_answered_as_none() -> None:
    with DrivenServer() as server:
        pools = server.must("admin", {"connPoolStats": 1})
        assert pools["totalCreated"] == 0 and pools["hosts"] == {}
        assert server.must("admin", {"lockInfo": 1})["lockInfo"] == []


def test_a_line_of_an_application_goes_to_who_listens() -> None:
    events: list[AccessEvent] = []
    with DrivenServer() as server:
        server.engine.access.listeners.append(events.append)
        server.must("admin", {"logApplicationMessage": "deployed 1.2"})
        assert [(event[0], event[2]) for event in events] == [("applicationMessage", {"msg": "deployed 1.2"})]
        with pytest.raises(CommandError):
            server.must("admin", {"logApplicationMessage": "x" * (limits.APPLICATION_MESSAGE_LENGTH_MAX + 1)})
