"""Plant each bug in a copy of the package, and let the comparison or the simulation look for it.

    python -m tests.planted                  all of them, a minute each at most
    python -m tests.planted 03 12            some of them, by number

Exit status: 1 where one was not found. The table is printed as README.md has it.
"""

from __future__ import annotations

import argparse
import sys

from tests.planted.planting import PATCHES, Planted, find

SECONDS_MAX = 60.0


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("numbers", nargs="*", help="the numbers of patches")
    parser.add_argument("--seconds", type=float, default=SECONDS_MAX, help="how long one is looked for")
    chosen = parser.parse_args()
    missed = 0
    print("| Bug | Found by | Seconds |\n|---|---|---|", flush=True)
    for path in PATCHES:
        if chosen.numbers and path.name[:2] not in chosen.numbers:
            continue
        planted = Planted.read(path)
        found = find(planted, chosen.seconds)
        missed += found.seconds is None
        shown = "not found" if found.seconds is None else f"{found.seconds:.0f}"
        print(f"| {path.name[:2]} {planted.title} | {planted.finder} | {shown} |", flush=True)
        if found.seconds is None:
            print(found.output[-2000:], file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
