"""The command line and the environment of another process of this package, beside the server."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def python_command(module: str, *words: str) -> list[str]:
    """Return the command line that runs a module in this Python, without what the working directory may have of its
    name."""
    return [sys.executable, "-P", "-m", module, *words]


def child_environment() -> dict[str, str]:
    """Return the environment in which the process imports the package of this process."""
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
