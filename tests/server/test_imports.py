"""The imports of opening a server: a Python that only uses Headrace pays for no others."""

from __future__ import annotations

import subprocess
import sys


def modules_after(script: str) -> set[str]:
    """The modules loaded in a new Python that has run this."""
    line = f"{script}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_headrace_imports_neither_the_server_nor_spark() -> None:
    loaded = modules_after("import headrace")
    assert {name for name in loaded if name.startswith("headrace")} == {"headrace"}
    assert not loaded & {"asyncio", "bson", "lmdb", "pandas", "pyarrow", "pymongo", "pyspark", "uvloop"}


def test_opening_a_server_imports_no_client_and_nothing_large() -> None:
    before = modules_after("")
    loaded = modules_after("import headrace\nheadrace.Server().start()")
    assert not loaded & {"email", "importlib.metadata", "numpy", "pandas", "pyarrow", "pymongo", "pyspark", "pytest"}
    assert len([name for name in loaded - before if not name.startswith("headrace")]) < 190
