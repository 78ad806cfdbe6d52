"""Clients cannot fill the log."""

from __future__ import annotations

import logging

import pytest

import headrace
from headrace import limits
from headrace.server.log.rate import LogRate

from .raw import RawClient


@pytest.fixture(autouse=True)
def bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many lines a second as outside of tests."""
    monkeypatch.setattr(limits, "LOG_LINES_PER_SECOND_MAX", 20)


def test_a_second_has_so_many_lines_and_the_next_says_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("headrace.server.test_log_rate")  # which has no server's filter
    now = [0.0]
    rate = LogRate(logger, lambda: now[0])
    logger.addFilter(rate)
    try:
        for number in range(50):
            logger.warning("line %d", number)
        logger.critical("the end")
        assert len(caplog.records) == limits.LOG_LINES_PER_SECOND_MAX + 1
        caplog.clear()
        rate.look()
        assert not caplog.records
        now[0] = 1.0
        rate.look()
        assert [record.message for record in caplog.records] == ["30 lines like these were left out of the log"]
        caplog.clear()
        now[0] = 2.5
        logger.warning("again")
        assert [record.message for record in caplog.records] == ["again"]
    finally:
        logger.removeFilter(rate)


def test_a_flood_of_malformed_messages_is_some_lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "LOG_LINES_PER_SECOND_MAX", 5)
    filters = list(logging.getLogger("headrace.server").filters)
    with headrace.Server() as server:
        for _ in range(100):
            with RawClient(server.address) as client:
                client.socket.sendall(b"\xff" * 100)
                assert client.socket.recv(1) == b""
        lines = [record for record in caplog.records if "invalid message" in record.message]
        assert 0 < len(lines) < 100
    assert logging.getLogger("headrace.server").filters == filters
