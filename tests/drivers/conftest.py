"""pymongo's own tests, for the tests here that run them, in the version that is installed."""

from __future__ import annotations

from pathlib import Path

import pymongo
import pytest

from tests.clients.packages import source_package


@pytest.fixture(scope="session")
def suite() -> Path:
    """The folder in which pymongo's `test` lies."""
    return source_package("pymongo", pymongo.version, ("test/", "pyproject.toml"))
