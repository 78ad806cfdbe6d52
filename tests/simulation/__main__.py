"""Run the simulation from the command line: exit status 1 for a finding, whose steps are printed as few as can be.

python -m tests.simulation --seed 7 --steps 2000
python -m tests.simulation --minutes 10 --steps 2000       seeds one after the other, from --seed on
"""

from __future__ import annotations

import argparse
import logging
import sys

from headrace.clock import monotonic
from tests.simulation.shrink import Found, attempt, shrink

STEPS_SHOWN = 80


def main() -> int:
    """Run as the arguments say; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, default=2000, help="steps of each seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--minutes", type=float, help="go on with further seeds for so long, rather than for --seeds")
    parser.add_argument("--all", action="store_true", help="go on after a finding")
    parser.add_argument(
        "--shrink", type=float, default=60.0, metavar="SECONDS", help="how long to shrink; 0: not at all"
    )
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    begun, steps, seed, findings = monotonic(), 0, arguments.seed, 0
    ends = None if arguments.minutes is None else begun + 60 * arguments.minutes
    while (seed < arguments.seed + arguments.seeds) if ends is None else monotonic() < ends:
        result = attempt(seed, count=arguments.steps)
        seed += 1
        if not isinstance(result, Found):
            steps += result
            continue
        steps += len(result.steps)
        findings += 1
        _show(result, steps, monotonic() - begun, arguments.shrink)
        if not arguments.all:
            break
    seconds = monotonic() - begun
    print(f"{steps} steps, {steps / seconds:.0f} a second; {seed - arguments.seed} seeds, {findings} findings")
    return 1 if findings else 0


def _show(found: Found, steps: int, seconds: float, shrink_seconds: float) -> None:
    print(f"seed {found.seed}, after {seconds:.1f} s and {steps} steps: {found.message[:2000]}", flush=True)
    if shrink_seconds:
        found = shrink(found, seconds=shrink_seconds)
        print(f"with {len(found.steps)} steps: {found.message[:2000]}")
        for step in found.steps[-STEPS_SHOWN:]:
            print(f"    {step!r},")


if __name__ == "__main__":
    sys.exit(main())
