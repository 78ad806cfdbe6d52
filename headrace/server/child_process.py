"""The command line and the environment of other processes of this package."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def python_command(module: str, *words: str) -> list[str]:
    """Return the command line that runs a module in this Python. Modules in the working directory do not replace it."""
    return [sys.executable, "-P", "-m", module, *words]


def child_environment() -> dict[str, str]:
    """Return an environment in which the process imports the same package as this process."""
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
