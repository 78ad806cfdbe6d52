"""The source's own tests with PySpark 4.1, which pip installs beside this one for as long as they run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

pytestmark = pytest.mark.slow

VERSION: Final = "4.1.4"
# What pip says where no index can be reached, or none has the package.
_UNREACHABLE: Final = ("No matching distribution found", "Connection", "Temporary failure in name resolution")
_HERE: Final = Path(__file__).parent


@pytest.fixture(scope="module")
def older() -> Iterator[dict[str, str]]:
    """The environment of a process that imports PySpark 4.1; all else is what is installed here."""
    with TemporaryDirectory(prefix="headrace-pyspark-") as path:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        # The index is the machine's own; without constraints, which name the other version.
        told = subprocess.run(
            [*command, "--target", path, f"pyspark=={VERSION}"], capture_output=True, text=True, check=False
        )
        if told.returncode and any(word in told.stderr for word in _UNREACHABLE):
            pytest.skip(f"PySpark {VERSION} cannot be had: {told.stderr.strip().splitlines()[-1]}")
        assert told.returncode == 0, told.stderr
        paths = [path, str(_HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
        yield os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def test_the_version_is_that_one_and_has_no_admission_control(older: dict[str, str]) -> None:
    asked = "import pyspark, headrace.spark.source.admission as a; print(pyspark.__version__, a.ADMITS)"
    told = subprocess.run([sys.executable, "-c", asked], env=older, capture_output=True, text=True, check=True)
    assert told.stdout.split() == [VERSION, "False"]


def test_the_sources_tests_pass(older: dict[str, str]) -> None:
    # One way of reading is enough here: how events come from a server has nothing to do with Spark.
    tests = [str(_HERE / name) for name in ("test_source.py", "test_source_options.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not bson", *tests]
    told = subprocess.run(command, env=older, cwd=_HERE.parents[1], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout[-4000:] + told.stderr[-2000:]
    assert "8 passed, 1 skipped, 6 deselected" in told.stdout
