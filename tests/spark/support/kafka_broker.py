"""A Kafka of one node for a test: a real broker, from the jars that Maven Central has, started with java."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from headrace import limits
from headrace.clock import SystemClock
from headrace.spark.session.jvm import find_java, spark_home
from headrace.spark.sinks.kafka_sink import unreachable
from tests.ports import free_port
from tests.spark.support.other_pyspark import cache

BROKER: Final = ("org.apache.kafka", "kafka_2.13", "4.1.0")
_START_SECONDS_MAX: Final = 120.0
_CLUSTER: Final = "4L6g3nShT-eMCtK--X86sw"


def resolved(artifact: tuple[str, str, str], only: Sequence[str] = ()) -> list[str]:
    """The jars of the artifact and of all that it needs, `only` those with such names; downloaded once, by Ivy.

    Skips the test where they cannot be had.
    """
    listed = cache() / f"{artifact[1]}-{artifact[2]}.classpath"
    if not listed.is_file() or not all(Path(jar).is_file() for jar in listed.read_text().strip().split(os.pathsep)):
        ivy = next((spark_home() / "jars").glob("ivy-*.jar"))
        with tempfile.TemporaryDirectory(dir=cache()) as folder:
            paths = Path(folder) / "classpath"
            command = [str(find_java().command), "-cp", str(ivy), "org.apache.ivy.Main", "-cache", str(cache() / "ivy")]
            command += ["-dependency", *artifact, "-confs", "default", "-cachepath", str(paths)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode or not paths.is_file():
                pytest.skip(f"Maven Central did not give {':'.join(artifact)}: {done.stdout[-300:]}")
            paths.rename(listed)
    jars = listed.read_text().strip().split(os.pathsep)
    return [jar for jar in jars if not only or any(name in Path(jar).name for name in only)]


class Broker:
    """A running broker. `address` is what clients ask."""

    def __init__(self, folder: Path) -> None:
        self._jars = os.pathsep.join(resolved(BROKER))
        self._folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        controller = f"127.0.0.1:{free_port()}"
        self._file = folder / "server.properties"
        self._file.write_text(
            f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@{controller}\n"
            f"listeners=PLAINTEXT://{self.address},CONTROLLER://{controller}\n"
            f"advertised.listeners=PLAINTEXT://{self.address}\ncontroller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
            f"log.dirs={folder / 'logs'}\nnum.partitions=3\noffsets.topic.replication.factor=1\n"
            "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
        )

    def start(self) -> None:
        """Formats the broker's storage and waits until it takes connections."""
        self._run("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(self._file))
        self.process = subprocess.Popen(
            self._command("kafka.Kafka", str(self._file)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        clock = SystemClock()
        until_ms = clock.monotonic_ms() + _START_SECONDS_MAX * 1000
        while unreachable(self.address, limits.START_CHECK_SECONDS_MAX):
            assert self.process.poll() is None, "the broker has ended"
            assert clock.monotonic_ms() < until_ms, "the broker does not answer"
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.2)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def _run(self, *words: str) -> None:
        subprocess.run(self._command(*words), check=True, capture_output=True)

    def _command(self, *words: str) -> list[str]:
        flags = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        return [str(find_java().command), *flags, "-cp", self._jars, *words]


@contextmanager
def broker(folder: Path) -> Iterator[Broker]:
    """Inside, a broker runs whose files are in the folder."""
    running = Broker(folder)
    running.start()
    try:
        yield running
    finally:
        running.stop()
