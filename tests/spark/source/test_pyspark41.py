"""The source's own tests with PySpark 4.1, which pip installs once beside this one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.spark.support.other_pyspark import environment_with_pyspark

pytestmark = [pytest.mark.network, pytest.mark.process, pytest.mark.spark]

VERSION: Final = "4.1.4"
_HERE: Final = Path(__file__).parent


@pytest.fixture(scope="module")
def older() -> dict[str, str]:
    return environment_with_pyspark(VERSION)


def test_the_version_is_that_one_and_has_no_admission_control(older: dict[str, str]) -> None:
    asked = "import pyspark, headrace.spark.source.admission as a; print(pyspark.__version__, a.HAS_ADMISSION_CONTROL)"
    done = subprocess.run([sys.executable, "-c", asked], env=older, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [VERSION, "False"]


def test_the_sources_tests_pass(older: dict[str, str]) -> None:
    """May take over a minute: a session of that Spark, and all that the tests of the source do in it."""
    # One way of reading is enough here: how events come from a server has nothing to do with Spark.
    tests = [str(_HERE / name) for name in ("test_source.py", "test_source_options.py")]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "not bson", *tests]
    done = subprocess.run(command, env=older, cwd=_HERE.parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
