"""pymongo's own tests, for the tests here that run them.

They are in pymongo's source package, which pip fetches once, in the version that is installed, and which is kept in
the user's cache. Only its tests are unpacked, so that they run with the installed pymongo.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pymongo
import pytest


@pytest.fixture(scope="session")
def suite() -> Path:
    """The folder in which pymongo's `test` lies."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
    folder = cache / f"pymongo-{pymongo.version}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            unpacked = _unpacked(_downloaded(Path(temporary)), Path(temporary) / "unpacked")
            if not folder.is_dir():  # another run may have been quicker
                unpacked.rename(folder)
    return folder


def _downloaded(folder: Path) -> Path:
    """The source package, from whatever index pip is set to. To know its metadata pip has it built, but nothing else,
    and without the C extensions."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "pymongo"]
    environ = os.environ | {"NO_EXT": "1"}
    subprocess.run([*pip, "--dest", str(folder), f"pymongo=={pymongo.version}"], check=True, env=environ)
    return next(folder.glob("pymongo-*.tar.gz"))


def _unpacked(package: Path, folder: Path) -> Path:
    """The tests and their settings, without the driver."""
    with tarfile.open(package) as archive:
        members = [
            member
            for member in archive.getmembers()
            if member.name.partition("/")[2].startswith("test/")
            or member.name.endswith(f"{pymongo.version}/pyproject.toml")
        ]
        archive.extractall(folder, members, filter="data")
    return next(folder.iterdir())
