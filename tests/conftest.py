"""Settings of all tests: the same random examples everywhere, the lanes, and one Spark session for a process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The same examples on every machine, however busy it is.
settings.register_profile(
    "headrace", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("headrace")

# Pytest would rewrite the assertions of the package, too, as it has a plugin: four seconds of each process.
for finder in sys.meta_path:
    getattr(finder, "_must_rewrite", set[str]()).discard("headrace")

# A test that has one of these marks is left out of `make check`; CONTRIBUTING.md says what each means.
LANES = {"network", "process", "soak", "spark"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`-m 'not slow'` is every test without a lane. A test that takes the Spark session must be marked so."""
    texts: dict[Path, str] = {}
    for item in items:
        lanes = LANES.intersection(mark.name for mark in item.iter_markers())
        if "spark" in getattr(item, "fixturenames", ()) and "spark" not in lanes:
            raise pytest.UsageError(f"{item.nodeid} takes the Spark session: mark it `spark`")
        if not lanes and item.get_closest_marker("slow"):
            raise pytest.UsageError(f"{item.nodeid} is marked `slow` and no lane would run it: say what it needs")
        if lanes:
            item.add_marker("slow")
            text = texts.get(item.path) or texts.setdefault(item.path, item.path.read_text("utf-8"))
            if missing := [name for name in lanes if f"mark.{name}" not in text]:
                raise pytest.UsageError(
                    f"{item.path} does not name the mark {missing[0]}, so that no lane has its tests"
                )


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """The one session of this process; whatever a test sets in it, it sets back."""
    from headrace.spark.session import get_session

    return get_session(quick=True)
