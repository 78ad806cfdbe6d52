"""`headrace compact DIR`: make the file of a data directory as small as what it holds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.cli.arguments import Failed, add_command
from headrace.cli.serve import EXIT_DIRECTORY_IN_USE
from headrace.errors import reason_of


def add_parser(commands: Any) -> None:
    """The subcommand `compact`."""
    parser = add_command(
        commands, "compact", _run, "make the file of a data directory smaller, while no server has it open",
        "Copy the data file of a directory that no server has open without its free pages, and put the copy in its "
        "place. The disk needs room for the copy. A server uses free pages again by itself, so this is for a file that "
        "has become much larger than what it holds.",
        ("headrace compact data",),
    )  # fmt: skip
    parser.add_argument("path", metavar="DIR", type=Path, help="the data directory")


def _run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Print the sizes; 0, or 100 if a server has the directory open."""
    from headrace.store.compaction import compact
    from headrace.store.data_file import UnusableDirectory
    from headrace.store.lmdb import DirectoryInUse, LmdbError

    try:
        sizes = compact(arguments.path)
    except DirectoryInUse as error:
        raise Failed(str(error), EXIT_DIRECTORY_IN_USE) from None
    except (LmdbError, OSError, UnusableDirectory) as error:
        raise Failed(reason_of(error)) from None
    print(f"{arguments.path}: {sizes.before / 1e6:.1f} MB, now {sizes.after / 1e6:.1f} MB")
    return 0
