"""`headrace top`: repeat `headrace status` each second until interrupted."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from headrace.cli.arguments import add_command, add_json, add_uri, positive
from headrace.cli.monitoring.status import Status, add_interval, observed

_CLEAR: Final = "\x1b[H\x1b[J"
"""The escape sequence that moves the cursor home and clears the screen below it."""


def add_parser(commands: Any) -> None:
    """Add the subcommand `top`."""
    examples = ("headrace top", "headrace top mongodb://db.example:27017 --interval 5")
    about = "Show what a server does, as `headrace status` does, again each second, until Ctrl-C."
    parser = add_command(commands, "top", _run, "show what a server does, live", about, examples)
    add_uri(parser)
    add_interval(parser, "refresh every N seconds")
    parser.add_argument("--count", metavar="N", type=positive, help="exit after N refreshes")
    add_json(parser, "print each as a line of JSON")


def _run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    from headrace.cli.terminal import Painter, one_line

    painter, is_terminal = Painter(), sys.stdout.isatty()
    count = 0
    with observed(arguments.uri) as take:
        before = take()
        try:
            while count != arguments.count:
                time.sleep(arguments.interval)
                after = take()
                status, before = Status(before, after), after
                count += 1
                if arguments.json:
                    print(one_line(status.document()), flush=True)
                    continue
                columns, rows = shutil.get_terminal_size((80, 24))
                lines = list(status.lines(painter, columns if is_terminal else None, None))
                text = "\n".join(lines[: rows - 1] if is_terminal else lines)
                print(f"{_CLEAR}{text}" if is_terminal else f"{text}\n", flush=True)
        except KeyboardInterrupt:
            pass
    return 0
