"""Measure a server from a second process: operations a second, and the server's own CPU time for each.

    python bench/load.py                                      a Headrace started for it
    python bench/load.py --server 127.0.0.1:27017             a server that runs already
    python bench/load.py --against 127.0.0.1:27018            and another beside it, in turn, with ratios
    python bench/load.py --tls                                a Headrace with TLS, and one without, in turn, with ratios
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

from loops import Measured
from scenarios import SCENARIOS, Scenario
from streams import MEMORY, STREAMS
from target import StartedServer, Target

ALL = (MEMORY, *SCENARIOS, *STREAMS)
Figures = dict[str, dict[str, list[Measured]]]
"""Figure by name → server by name → one measurement of each round."""


def main() -> int:
    arguments = _arguments()
    chosen = [scenario for scenario in ALL if _wanted(scenario, arguments.only)]
    if not chosen:
        print(
            "no scenario has such a name; there are: " + "; ".join(s.name for s in ALL),
            file=sys.stderr,
        )
        return 2
    figures: Figures = {}
    with ExitStack() as stack:
        if arguments.tls or arguments.auth:
            targets = [
                stack.enter_context(
                    StartedServer(arguments.directory, name=name, tls=name == "tls", auth=name == "auth")
                )
                for name in ("tls" if arguments.tls else "auth", "plain")
            ]
        else:
            targets = [_target(arguments, stack)]
        if arguments.against:
            targets.append(_address("against", arguments.against, arguments.against_pid))
        for scenario in chosen:
            _measure(scenario, targets, arguments.rounds, arguments.seconds, figures)
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
    add("--against", metavar="HOST:PORT", help="measure this one in turn with it, and print ratios")
    add("--against-pid", type=int, help="its process, where /proc does not tell")
    add("--only", nargs="+", default=[], metavar="TEXT", help="scenarios whose name contains one of these")
    add("--rounds", type=int, default=3, help="measurements of each, of which the median counts (default: 3)")
    add("--seconds", type=float, default=2.0, help="about how long each takes (default: 2)")
    add("--directory", type=Path, help="where the started Headrace has its data (default: the temporary directory)")
    add("--json", type=Path, metavar="FILE", help="write all measurements there")
    return parser.parse_args()


def _wanted(scenario: Scenario, only: Sequence[str]) -> bool:
    return not only or any(text.lower() in scenario.name.lower() for text in only)


def _target(arguments: argparse.Namespace, stack: ExitStack) -> Target:
    if arguments.server:
        return _address("server", arguments.server, arguments.pid)
    return stack.enter_context(StartedServer(arguments.directory))


def _address(name: str, text: str, pid: int | None) -> Target:
    host, _, port = text.rpartition(":")
    return Target(name, host.strip("[]") or "127.0.0.1", int(port), pid)


def _measure(scenario: Scenario, targets: Sequence[Target], rounds: int, seconds: float, figures: Figures) -> None:
    """All rounds of one scenario, the servers taking turns; prints its lines."""
    names: list[str] = []
    for _ in range(rounds):
        for target in targets:
            for name, measured in scenario.run(target, seconds).items():
                figures.setdefault(name, {}).setdefault(target.name, []).append(measured)
                names += [name] if name not in names else []
    for name in names:
        print(
            _line(name, [figures[name][target.name] for target in targets if target.name in figures[name]]), flush=True
        )


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
