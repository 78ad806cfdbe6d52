"""A server for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import headrace


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with headrace.Server() as server:
        yield server.uri
