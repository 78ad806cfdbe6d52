"""Measure a server from a second process: operations a second, and the server's own CPU time for each.

    python bench/load.py                                      a Headrace started for it
    python bench/load.py --server 127.0.0.1:27017             a server that runs already
    python bench/load.py --against 127.0.0.1:27018            and another beside it, in turn, with ratios
    python bench/load.py --tls                                a Headrace with TLS, and one without, in turn, with ratios
    python bench/load.py --floor                              a Headrace and the floor, in turn: the table of ratios
    python bench/load.py --auth                               a Headrace with --auth, and one without, likewise
    python bench/load.py --only insert find --seconds 1

See README.md in this folder for what the figures mean.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from floor_ratios import print_ratios
from loops import Measured
from scenarios import SCENARIOS, Scenario
from streams import MEMORY, STREAMS
from target import StartedServer, Target

ALL = (MEMORY, *SCENARIOS, *STREAMS)
Figures = dict[str, dict[str, list[Measured]]]
"""Figure by name → server by name → one measurement of each round."""


def main() -> int:
    arguments = _arguments()
    if arguments.floor:
        print_ratios(arguments.directory, arguments.rounds, arguments.seconds)
        return 0
    chosen = [scenario for scenario in ALL if _wanted(scenario, arguments.only)]
    if not chosen:
        print(
            "no scenario has such a name; there are: " + "; ".join(s.name for s in ALL),
            file=sys.stderr,
        )
        return 2
    figures: Figures = {}
    for start in range(arguments.starts):
        with ExitStack() as stack:
            targets = _targets(arguments, stack)
            for scenario in chosen:
                names = _measure(scenario, targets, arguments.rounds, arguments.seconds, figures)
                if start == arguments.starts - 1:
                    _print(names, [target.name for target in targets], figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(_plain(figures), indent=2) + "\n")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--server", metavar="HOST:PORT", help="measure this server (default: start a Headrace)")
    add("--pid", type=int, help="its process, where /proc does not tell")
    add("--tls", action="store_true", help="start one Headrace with TLS and one without, and measure them in turn")
    add("--auth", action="store_true", help="start one Headrace with --auth and one without, and measure them in turn")
    add("--floor", action="store_true", help="start a Headrace and the floor (floor.py), and print their ratios")
    add("--against", metavar="HOST:PORT", help="measure this one in turn with it, and print ratios")
    add("--against-pid", type=int, help="its process, where /proc does not tell")
    add("--only", nargs="+", default=[], metavar="TEXT", help="scenarios whose name contains one of these")
    add("--rounds", type=int, default=3, help="measurements of each, of which the median counts (default: 3)")
    add(
        "--starts",
        type=int,
        default=1,
        help="start the servers anew so many times: two processes of the same program "
        "differ by some percent, whatever they run (default: 1)",
    )
    add("--seconds", type=float, default=2.0, help="about how long each takes (default: 2)")
    add("--directory", type=Path, help="where the started Headrace has its data (default: the temporary directory)")
    add("--json", type=Path, metavar="FILE", help="write all measurements there")
    return parser.parse_args()


def _wanted(scenario: Scenario, only: Sequence[str]) -> bool:
    return not only or any(text.lower() in scenario.name.lower() for text in only)


def _targets(arguments: argparse.Namespace, stack: ExitStack) -> list[Target]:
    """The server that is measured, and the one that it is compared with, if any."""
    directory = arguments.directory
    if arguments.tls or arguments.auth:
        names = ("tls" if arguments.tls else "auth", "plain")
        return [
            stack.enter_context(StartedServer(directory, name=name, tls=name == "tls", auth=name == "auth"))
            for name in names
        ]
    if arguments.server:
        targets = [_address("server", arguments.server, arguments.pid)]
    else:
        targets = [stack.enter_context(StartedServer(directory))]
    if arguments.against:
        targets.append(_address("against", arguments.against, arguments.against_pid))
    return targets


def _address(name: str, text: str, pid: int | None) -> Target:
    host, _, port = text.rpartition(":")
    return Target(name, host.strip("[]") or "127.0.0.1", int(port), pid)


def _measure(scenario: Scenario, targets: Sequence[Target], rounds: int, seconds: float, figures: Figures) -> list[str]:
    """All rounds of one scenario, the servers taking turns, each first in every other round. Returns the names of its
    figures."""
    names: list[str] = []
    for number in range(rounds):
        for target in targets if number % 2 == 0 else reversed(targets):
            for name, measured in scenario.run(target, seconds).items():
                figures.setdefault(name, {}).setdefault(target.name, []).append(measured)
                names += [name] if name not in names else []
    return names


def _print(names: Sequence[str], targets: Sequence[str], figures: Figures) -> None:
    for name in names:
        print(_line(name, [figures[name][target] for target in targets if target in figures[name]]), flush=True)


def _line(name: str, servers: Sequence[Sequence[Measured]]) -> str:
    rates = [statistics.median(measured.per_second for measured in rounds) for rounds in servers]
    times = [statistics.median(measured.cpu_us for measured in rounds) for rounds in servers]
    columns = [f"{name:<46}"]
    unit = next((unit for unit in _UNITS if name.startswith(f"{unit} ")), "/s")
    for rate, cpu_us in zip(rates, times, strict=True):
        columns.append(f"{_number(rate):>9} {unit}")
        columns.append("              " if math.isnan(cpu_us) else f"{_number(cpu_us):>8} µs CPU")
    if len(servers) == 2:
        columns.append(f"× {rates[0] / rates[1]:.2f}")
        if times[1] > 0 and not math.isnan(times[0]):
            columns.append(f"CPU × {times[0] / times[1]:.2f}")
    return "  ".join(columns)


_UNITS = ("KiB", "ms", "times")
"""Figures that are no rates begin with their unit."""


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def _plain(figures: Figures) -> dict[str, dict[str, list[dict[str, float | None]]]]:
    return {
        name: {
            server: [
                {"value": measured.per_second, "cpu_us": None if math.isnan(measured.cpu_us) else measured.cpu_us}
                for measured in rounds
            ]
            for server, rounds in servers.items()
        }
        for name, servers in figures.items()
    }


if __name__ == "__main__":
    sys.exit(main())
