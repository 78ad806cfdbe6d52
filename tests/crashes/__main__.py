"""Crash a store thousands of times, and check it after each crash.

    python -m tests.crashes kills --count 10000 --seed 1
    python -m tests.crashes power --count 10000 --dir /dev/shm
    python -m tests.crashes full --minutes 2

The exit status is 1 if something acknowledged is lost, or anything else is wrong. The directory is then kept, and the
seed is printed; threads make that no two runs are the same.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.crashes.kills import Kills, KillsOnFailingDisk, KillsOnFullDisk
from tests.crashes.power import PowerLosses

KINDS = {
    "errors": (KillsOnFailingDisk, "kills"),
    "full": (KillsOnFullDisk, "kills"),
    "kills": (Kills, "kills"),
    "power": (PowerLosses, "power losses"),
}


def main(arguments: argparse.Namespace) -> int:
    """Run until there have been enough crashes, or the time is up; print the figures."""
    logging.disable()
    path = Path(tempfile.mkdtemp(prefix="crashes-", dir=arguments.dir))
    kind, counted = KINDS[arguments.kind]
    crashes, start = kind(path / "data", arguments.seed), time.monotonic()
    try:
        while crashes.counts[counted] < arguments.count and time.monotonic() - start < arguments.minutes * 60:
            crashes.cycle()
    except KeyboardInterrupt:
        print("interrupted: ", end="")
    except Exception:
        traceback.print_exc()
        print(f"FOUND in {path} with seed {arguments.seed}, after {figures(crashes)}", flush=True)
        return 1
    print(f"{figures(crashes)}; 0 lost, 0 skipped or repeated; {time.monotonic() - start:.0f} s")
    shutil.rmtree(path)
    return 0


def figures(crashes: Kills | PowerLosses) -> str:
    """What was checked."""
    counts = {
        **crashes.counts,
        "events": crashes.checker.event_count,
        "tokens pruned": crashes.checker.pruned_count,
        "writes sent again": crashes.checker.resent_count,
    }
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def run(words: list[str]) -> int:
    """Do what a command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.crashes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--count", type=int, default=1000, help="crashes (default: 1000)")
    parser.add_argument("--minutes", type=float, default=600.0, help="the longest time (default: 600)")
    parser.add_argument("--seed", type=int, default=1, help="what to do and when to crash (default: 1)")
    parser.add_argument("--dir", help="where to make directories; /dev/shm is fast (default: the system's)")
    return main(parser.parse_args(words))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
