"""Compare access paths with random cases, and print the first that fails as commands that can be run.

    python -m tests.differential --minutes 10
    python -m tests.differential --seed 7

Exit status: 1 where an answer was wrong.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from time import process_time

from tests.differential.cases import random_case
from tests.differential.comparison import Case, Finding, run_case
from tests.differential.shrinking import shrunk

SHRINKING_SECONDS = 60.0


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--seed", type=int, help="run the case of this seed only")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--minutes", type=float, default=1.0, help="run cases for this long, of processor time")
    parser.add_argument("--all", action="store_true", help="go on after a finding")
    parser.add_argument("--quick", action="store_true", help="print a finding as it is, without shrinking")
    chosen = parser.parse_args()
    logging.disable(logging.ERROR)
    began = process_time()
    seed, count, findings = chosen.first if chosen.seed is None else chosen.seed, 0, 0
    while True:
        case = random_case(seed)
        finding = run_case(case)
        count += 1
        if finding is not None:
            findings += 1
            if not chosen.quick:
                case, finding = smallest(case, finding)
            print(report(seed, case, finding), flush=True)
            if not chosen.all:
                break
        seed += 1
        if chosen.seed is not None or process_time() - began > 60 * chosen.minutes:
            break
    seconds = process_time() - began
    print(f"{count} cases in {seconds:.0f} s, {60 * count / seconds:.0f} a minute, findings: {findings}")
    return 1 if findings else 0


def smallest(case: Case, finding: Finding) -> tuple[Case, Finding]:
    """Return the case shrunk, and what it finds."""
    kind = _kind(finding)

    def fails(tried: Case) -> bool:
        found = run_case(tried)
        return found is not None and _kind(found) == kind

    small = shrunk(case, fails, seconds=SHRINKING_SECONDS)
    return small, run_case(small) or finding


def _kind(finding: Finding) -> str:
    """Return what findings of one cause have in common: the words without values, or the line that raised."""
    if finding.message.startswith("Traceback"):
        return finding.message.strip().splitlines()[-1][:60]
    words = re.split(r"[0-9{\[]", finding.message)[0]
    return f"{next(iter(finding.commands[-1]))} {words}"


def report(seed: int, case: Case, finding: Finding) -> str:
    """Return a finding as text: the case, then the commands."""
    lines = [f"seed {seed}", f"limits = {case.limits}", f"steps = {case.steps}", ""]
    lines += [f'at.run("t", {command})' for command in finding.commands]
    text = "\n".join([*lines, finding.message, ""])
    return text.replace("'" + "x" * 600 + "y'", "'x' * 600 + 'y'").replace("'" + "x" * 600 + "'", "'x' * 600")


if __name__ == "__main__":
    sys.exit(main())
