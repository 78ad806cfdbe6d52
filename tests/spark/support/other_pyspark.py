"""Another PySpark, which pip installs beside this one for as long as a test needs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

# What pip says where no index can be reached, or none has the package.
_UNREACHABLE: Final = ("No matching distribution found", "Connection", "Temporary failure in name resolution")
_CHECKOUT: Final = Path(__file__).parents[3]


@contextmanager
def pyspark_of(version: str) -> Iterator[dict[str, str]]:
    """The environment of a process that imports that PySpark; all else is what is installed here."""
    with TemporaryDirectory(prefix="headrace-pyspark-") as path:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        # The index is the machine's own; without constraints, which name the other version.
        told = subprocess.run(
            [*command, "--target", path, f"pyspark=={version}"], capture_output=True, text=True, check=False
        )
        if told.returncode and any(word in told.stderr for word in _UNREACHABLE):
            pytest.skip(f"PySpark {version} cannot be had: {told.stderr.strip().splitlines()[-1]}")
        assert told.returncode == 0, told.stderr
        paths = [path, str(_CHECKOUT), os.environ.get("PYTHONPATH", "")]
        yield os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
