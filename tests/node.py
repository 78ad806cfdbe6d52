"""Packages of npm for tests that want Node.js: found, or installed once into the user's cache.

HEADRACE_NODE_MODULES names a folder `node_modules` that holds them already. Where there is no node, no npm, or no
registry that answers, the test is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def node_modules(package: str, version: str | None = None) -> Path:
    """The `node_modules` folder that holds the package; skips the test where it cannot be had.

    `version`: the one to install, or None for the newest of the day it is first wanted.
    """
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    pinned = f"{package}@{version}" if version else package
    named = os.environ.get("HEADRACE_NODE_MODULES")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace" / "npm"
    for folder in [Path(named)] if named else [cache / pinned / "node_modules"]:
        if (folder / package).is_dir():
            return folder
    if named or shutil.which("npm") is None:
        pytest.skip(f"the npm package {package} is not installed")
    folder = cache / pinned
    folder.mkdir(parents=True, exist_ok=True)
    line = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), pinned]
    run = subprocess.run(line, check=False, capture_output=True, text=True, timeout=300)
    if run.returncode:
        pytest.skip(f"npm could not install {package}: {run.stderr.strip()[-200:]}")
    return folder / "node_modules"
