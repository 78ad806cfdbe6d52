"""The status of the pipeline's jobs for the page, as `headrace pipeline status --json` prints it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

CACHE_SECONDS: Final = 5.0


class JobReports:
    """The jobs that the command line names. Their status is read at most once in `CACHE_SECONDS`."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        self._answer: list[dict[str, Any]] = []

    def document(self) -> dict[str, Any]:
        """Return a status, or an error, for each file. Safe from any thread."""
        with self._lock:
            if self._paths and time.monotonic() - self._asked_at > CACHE_SECONDS:
                self._answer = [self._status(path) for path in self._paths]
                self._asked_at = time.monotonic()
            return {"jobs": self._answer}

    def _status(self, path: Path) -> dict[str, Any]:
        try:
            from headrace.spark.errors import error_line
            from headrace.spark.jobs.job_file import read_job
            from headrace.spark.jobs.status import job_status
        except ImportError as error:
            return {
                "file": path.name,
                "error": f"the pipeline is not installed: pip install 'headrace[spark]' ({error})",
            }
        try:
            return {"file": path.name, **job_status(read_job(path)).document()}
        except Exception as error:  # the file, the tables or the servers of the job: the page shows the reason
            return {"file": path.name, "error": error_line(error)}
