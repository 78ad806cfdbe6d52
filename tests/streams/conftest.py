"""One server for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.streams.serving import Served, serving


@pytest.fixture(scope="module")
def at() -> Iterator[Served]:
    with serving() as served:
        yield served
