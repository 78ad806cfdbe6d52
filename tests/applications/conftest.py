"""A server for each file of tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

import headrace


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with headrace.Server() as server:
        yield server.uri


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Celery's worker sets the root logger's level and handlers."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
