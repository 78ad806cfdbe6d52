"""Measure a backup of a server under load: the rate that its clients keep, the backup's memory, and its time beside cp.

    python bench/backup.py                       1 GB, a client with acknowledged inserts
    python bench/backup.py --megabytes 200 --seconds 5 --connections 16

A Headrace is filled. Then clients insert documents of 1 KB, each waiting for its acknowledgement, while in turn

    snapshot    `headrace backup` stores the directory in a new archive, at a lower priority (`nice`)
    follow      `headrace backup --follow` ships what they insert, likewise
    cp          the data file is copied, and the copy synced

Before and after each they insert alone for a while, with which it is compared.

See README.md in this folder for what the figures mean.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loops import Channel, check
from messages import command
from target import StartedServer, Target, receive

DATABASE = "backed_up"
DOCUMENT_BYTES = 1000
BATCH_COUNT = 1000


@dataclass(frozen=True, slots=True)
class Phase:
    """The figures of one phase; memory in bytes."""

    name: str
    seconds: float
    inserts: float
    """A second."""
    cpu_us: float
    """The server's, for each."""
    memory: int = 0


class Load:
    """Clients in a thread that insert one document after the other; `count` of them are acknowledged."""

    def __init__(self, target: Target, connections: int) -> None:
        self.count = 0
        self._stop = False
        self._draw = random.Random(1)
        self._channels = [Channel(target.connect()) for _ in range(connections)]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        import selectors

        with selectors.DefaultSelector() as selector:
            for channel in self._channels:
                selector.register(channel.socket, selectors.EVENT_READ, channel)
                channel.send(insert(self._draw, 1))
            while not self._stop:
                for key, _ in selector.select(0.1):
                    if key.data.take():
                        check(key.data.data)
                        self.count += 1
                        key.data.send(insert(self._draw, 1))

    def stop(self) -> None:
        """End, and close the connections."""
        self._stop = True
        self._thread.join()
        for channel in self._channels:
            channel.socket.close()


def insert(draw: random.Random, count: int) -> bytes:
    """Return a message that inserts `count` new documents; half of their bytes cannot be compressed."""
    half = DOCUMENT_BYTES // 2
    documents = [{"noise": draw.randbytes(half), "text": "x" * half} for _ in range(count)]
    return command({"insert": "documents", "documents": documents}, DATABASE)


def fill(target: Target, file: Path, size: int) -> None:
    """Insert documents until the data file has `size` bytes."""
    draw = random.Random(0)
    with target.connect() as connection:
        while file.stat().st_size < size:
            connection.sendall(insert(draw, BATCH_COUNT))
            check(receive(connection))


def measure(name: str, target: Target, load: Load, action: Callable[[], int]) -> Phase:
    """Measure the load while `action` goes on, which returns bytes of memory."""
    count, cpu, began = load.count, target.cpu_seconds(), time.perf_counter()
    memory = action()
    seconds, inserts = time.perf_counter() - began, load.count - count
    cpu_us = (target.cpu_seconds() - cpu) / max(inserts, 1) * 1e6
    return Phase(name, seconds, inserts / seconds, cpu_us, memory)


def run_program(words: list[str], seconds: float | None = None) -> int:
    """Run a program to its end, or until the time is up; return the most memory of its own, without mapped files."""
    most, ends = 0, None if seconds is None else time.monotonic() + seconds
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:  # nice becomes the program
        while process.poll() is None:
            most = max(most, own_memory(process.pid))
            if ends is not None and time.monotonic() > ends:
                process.send_signal(signal.SIGTERM)
                process.wait()
                return most
            time.sleep(0.02)
    if process.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with status {process.returncode}")
    return most


def own_memory(pid: int) -> int:
    """Resident bytes of a process that are no pages of files; 0 where Linux does not tell."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def phases(target: Target, data: Path, folder: Path, arguments: argparse.Namespace) -> list[Phase]:
    """Measure all phases, once."""
    archive, copy = folder / "archive", folder / "copy.mdb"
    backup = ["nice", "-n", "10", sys.executable, "-m", "headrace", "backup", str(data), str(archive)]

    def alone() -> int:
        time.sleep(arguments.seconds)
        return 0

    def cp() -> int:
        shutil.copyfile(data / "data.mdb", copy)
        with copy.open("rb+") as file:
            os.fsync(file.fileno())
        return 0

    actions = {
        "snapshot": lambda: run_program(backup),
        "follow": lambda: run_program([*backup, "--follow"], arguments.seconds),
        "cp": cp,
    }
    load = Load(target, arguments.connections)
    try:
        time.sleep(1)
        measured = [measure("alone", target, load, alone)]
        for name, action in actions.items():
            measured += [measure(name, target, load, action), measure("alone", target, load, alone)]
    finally:
        load.stop()
    shutil.rmtree(archive)
    copy.unlink()
    return measured


def show(rounds: list[list[Phase]], data: Path) -> None:
    """Print the medians of all rounds, each phase beside those alone before and after it."""
    every = [phase for measured in rounds for phase in measured]
    alone = [phase for phase in every if phase.name == "alone"]
    median = statistics.median
    print(
        f"data file of {(data / 'data.mdb').stat().st_size / 1e6:.0f} MB; alone {median(p.inserts for p in alone):.0f} "
        f"inserts a second, {median(p.cpu_us for p in alone):.0f} µs of CPU"
    )
    for name in ("snapshot", "follow", "cp"):
        chosen = [(every[at - 1], every[at], every[at + 1]) for at in range(len(every)) if every[at].name == name]
        kept = median(2 * phase.inserts / (before.inserts + after.inserts) for before, phase, after in chosen)
        cpu = median(2 * phase.cpu_us / (before.cpu_us + after.cpu_us) for before, phase, after in chosen)
        seconds = median(phase.seconds for _, phase, _ in chosen)
        memory = max(phase.memory for _, phase, _ in chosen)
        shown = f", {memory / 1e6:.0f} MB of memory" if memory else ""
        print(f"{name:10}{kept:5.0%} of the inserts, CPU × {cpu:.2f}, {seconds:6.1f} s{shown}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    add: Any = parser.add_argument
    add("--megabytes", type=int, default=1000, help="of the data file (default: %(default)s)")
    add("--seconds", type=float, default=10.0, help="of each phase that has no end of its own (default: %(default)s)")
    add("--connections", type=int, default=4, help="that insert (default: %(default)s)")
    add("--rounds", type=int, default=3)
    add("--directory", type=Path, help="where all is made and removed (default: the system's for temporary files)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=arguments.directory) as name:
        started = StartedServer(Path(name))
        with started as target:
            data = started.directory / "data"
            fill(target, data / "data.mdb", arguments.megabytes * 1_000_000)
            rounds = [phases(target, data, Path(name), arguments) for _ in range(arguments.rounds)]
            show(rounds, data)


if __name__ == "__main__":
    main()
