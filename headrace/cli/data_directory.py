"""The default data directory of `headrace serve`."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def data_directory() -> Path:
    """Return `$XDG_DATA_HOME/headrace`, by default `~/.local/share/headrace`.

    On macOS return `~/Library/Application Support/headrace`.
    """
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "headrace"
    base = os.environ.get("XDG_DATA_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share"
    return folder / "headrace"
