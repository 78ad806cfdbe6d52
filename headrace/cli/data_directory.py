"""Where a user's data is when the command line does not say: never in the current directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def data_directory() -> Path:
    """The user's data directory: XDG's on Linux and the like, the Library's on macOS."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "headrace"
    base = os.environ.get("XDG_DATA_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share"
    return folder / "headrace"
