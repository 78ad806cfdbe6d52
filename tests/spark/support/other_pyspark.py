"""Another PySpark beside the one of this environment: pip installs it once, into the user's cache."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest

# What pip says where no index can be reached, or none has the package.
_UNREACHABLE: Final = ("No matching distribution found", "Connection", "Temporary failure in name resolution")
PIP: Final = ("-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check")
"""Python's arguments to install packages, which are compiled when they are first imported."""
_CHECKOUT: Final = Path(__file__).parents[3]


def cache() -> Path:
    """The folder of what tests fetch once; `make test` has it in `.venv/cache`."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def environment_with_pyspark(version: str) -> dict[str, str]:
    """The environment of a process that imports that PySpark; all else is what is installed here.

    Skips the test where the package cannot be had.
    """
    installed = cache() / f"pyspark-{version}-{sys.version_info[0]}.{sys.version_info[1]}"
    if not installed.is_dir():
        with tempfile.TemporaryDirectory(dir=installed.parent) as temporary:
            _install(version, Path(temporary) / "installed")
            if not installed.is_dir():  # another run may have been quicker
                (Path(temporary) / "installed").rename(installed)
    paths = [str(installed), str(_CHECKOUT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _install(version: str, folder: Path) -> None:
    """From whatever index pip is set to; without constraints, which name the other version."""
    command = [sys.executable, *PIP, "--no-deps", "--target", str(folder), f"pyspark=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and any(word in done.stderr for word in _UNREACHABLE):
        pytest.skip(f"PySpark {version} cannot be had: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
