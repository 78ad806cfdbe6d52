"""A server of one's own for the drivers' tests: `headrace serve` as a process, with fail points."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving(folder: Path, *more: str, port: int = 0) -> Iterator[str]:
    """A server whose data lie in `folder`, with `more` flags; gives its `host:port`, and ends it."""
    words = [*more, "--port", str(port), "--dbpath", str(folder), "--nounixsocket", "--quiet", "--enable-test-commands"]
    line = [sys.executable, "-m", "headrace.cli.main", "serve", *words]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            address = re.search(r"127\.0\.0\.1:\d+", said)
            assert address, f"the server did not say where it listens: {said!r}"
            yield address[0]
        finally:
            process.terminate()
            process.wait(timeout=60)
