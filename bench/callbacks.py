"""The longest callback and iteration of a server's event loop under each attack, in CPU time, and where they were.

    python bench/callbacks.py                         all attacks; a line of each
    python bench/callbacks.py --only regex unwind     those whose name contains one of these
    python bench/callbacks.py --stacks 20             with the stacks of those above 20 ms

While a callback runs nobody else is served, nor in an iteration of the loop who comes behind its beginning: what
`fairness.py` shows as a client's wait is made of these. But a wait is longer on a busy machine; their CPU time is not.
Each attack has a server of its own (`measured_server.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attacks import ALL
from attacks.attacker import Attack, Attacker
from target import StartedServer

SERVER = str(Path(__file__).with_name("measured_server.py"))
QUIET_SECONDS = 0.5
"""After the collections are made, and after the attack."""


def main() -> int:
    arguments = _arguments()
    only = [text.lower() for text in arguments.only]
    for attack in ALL:
        if not only or any(text in attack.name.lower() for text in only):
            _print(attack, _measured(attack, arguments.seconds, arguments.directory), arguments.stacks)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--only", nargs="+", default=[], metavar="TEXT", help="attacks whose name contains one of these")
    add("--seconds", type=float, default=2.0, help="how long each goes on (default: 2)")
    add("--stacks", type=float, default=40.0, metavar="MS", help="show where those were that took longer (default: 40)")
    add("--directory", type=Path, help="where the servers have their data (default: the temporary directory)")
    return parser.parse_args()


def _measured(attack: Attack, seconds: float, directory: Path | None) -> list[dict[str, Any]]:
    """The callbacks and iterations of 10 ms and more while one client runs the attack, the longest first."""
    with (
        tempfile.NamedTemporaryFile("r", encoding="utf-8") as file,
        StartedServer(directory, attack.flags, program=[SERVER, file.name]) as target,
    ):
        if attack.prepare is not None:
            attack.prepare(Attacker(target.address, float("inf")))
        time.sleep(QUIET_SECONDS)
        file.read()
        attacker = Attacker(target.address, seconds)
        try:
            attack.run(attacker)
        except (ConnectionError, TimeoutError) as error:
            print(f"{attack.name}: {error}", file=sys.stderr)
        finally:
            attacker.close()
        time.sleep(QUIET_SECONDS)
        lines = [json.loads(line) for line in file.read().splitlines()]
    return sorted(lines, key=lambda line: -line["cpu_ms"])


def _print(attack: Attack, lines: Sequence[dict[str, Any]], stacks_ms: float) -> None:
    callbacks = [line for line in lines if "stacks" in line]
    iterations = [line for line in lines if "most" in line]
    longest, longest_iteration = (each[0]["cpu_ms"] if each else 0.0 for each in (callbacks, iterations))
    print(f"{longest:6.0f} ms, an iteration {longest_iteration:4.0f} ms  {attack.name}", flush=True)
    for line in (*callbacks[:2], *iterations[:1]):
        if line["cpu_ms"] >= stacks_ms:
            for text in line.get("stacks") or [", ".join(line["most"])]:
                print(f"{line['cpu_ms']:15.0f} ms  {text}")


if __name__ == "__main__":
    sys.exit(main())
