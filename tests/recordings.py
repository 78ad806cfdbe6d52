"""Where the recorded answers of a real MongoDB are: in the folder that HEADRACE_CONFORMANCE names, or beside the
checkout. They are not part of the repository, so that tests of them are skipped where there are none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_NAMED: Final = os.environ.get("HEADRACE_CONFORMANCE")
CONFORMANCE: Final = Path(_NAMED) if _NAMED else Path(__file__).resolve().parents[2] / "shared" / "conformance"
RECORDINGS: Final = CONFORMANCE / "recordings"
"""A file FAMILY.jsonl.gz for each family of cases."""
