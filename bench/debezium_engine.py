"""Debezium's embedded engine as a process of its own, which reads backlogs for `spark_comparison.py`.

It is given a folder of jars, which Maven makes from `debezium/pom.xml`; `debezium/DebeziumBacklog.java` is compiled by
Java (17 or newer) as it starts. The process stays for all rounds, so that only the first one pays for its start.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final

from spark_source import DATABASE

FORMATS: Final = ("connect", "json")
"""Records of Kafka Connect, whose documents are text; and these as JSON."""
_PROGRAM: Final = Path(__file__).parent / "debezium" / "DebeziumBacklog.java"


class DebeziumProcess:
    """Engines, one after the other, that read one collection's changes; ends with the `with`."""

    def __init__(self, jars: Path, uri: str) -> None:
        """`jars`: the folder. `uri`: of the server, with the name of its replica set, which Debezium insists on."""
        # Of its messages only errors.
        words = ["java", "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{jars}/*", str(_PROGRAM)]
        self._process = subprocess.Popen(
            [*words, uri, f"{DATABASE}.c"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> DebeziumProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def read(self, form: str, since: int, rows: int) -> tuple[int, int, float]:
        """Let a new engine read from a time on (in seconds) until it has so many rows, and close it: how many came, in
        how many batches, and the seconds from its start to the last row. Raises RuntimeError if the engine failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{form} {since} {rows}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline().split()
        if not line:
            raise RuntimeError("Debezium's engine failed; its messages are above")
        return int(line[0]), int(line[1]), float(line[2])
