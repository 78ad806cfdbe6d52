"""`headrace compact DIR|URI`: shrink the data file of a directory or of a running server to its contents."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.cli.arguments import Failed, add_command, is_uri
from headrace.cli.backup import without_user
from headrace.cli.serve import EXIT_DIRECTORY_IN_USE
from headrace.errors import reason_of


def add_parser(commands: Any) -> None:
    """Add the subcommand `compact`."""
    parser = add_command(
        commands, "compact", _run, "make the data file of a directory or a running server smaller",
        "Copy the data file without its free pages, and put the copy in its place. Writes to a running server go on "
        "meanwhile. The disk needs room for the copy. A server uses free pages again by itself, so this is for a file "
        "that has become much larger than what it holds.",
        ("headrace compact data", "headrace compact mongodb://localhost"),
    )  # fmt: skip
    parser.add_argument("source", metavar="DIR|URI", help="the data directory, if no server has it open, or the server")


def _run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Print the sizes; return 0, or 100 if a server has the directory open."""
    if is_uri(arguments.source):
        print(f"{without_user(arguments.source)}: {_compact_server(arguments.source) / 1e6:.1f} MB were freed")
        return 0
    from headrace.store.compaction import compact
    from headrace.store.data_file import UnusableDirectory
    from headrace.store.lmdb import DirectoryInUse, HalfExchanged, LmdbError

    try:
        sizes = compact(Path(arguments.source))
    except DirectoryInUse as error:
        raise Failed(str(error), EXIT_DIRECTORY_IN_USE) from None
    except (HalfExchanged, LmdbError, OSError, UnusableDirectory) as error:
        raise Failed(reason_of(error)) from None
    print(f"{arguments.source}: {sizes.before / 1e6:.1f} MB, now {sizes.after / 1e6:.1f} MB")
    return 0


def _compact_server(uri: str) -> int:
    """Let a server compact its file, which holds all collections; return the number of freed bytes."""
    from headrace.cli.connection import connected

    with connected(uri) as client:
        for name in client.list_database_names():
            for collection in client[name].list_collection_names(filter={"type": "collection"}):
                done = client[name].command({"compact": collection, "force": True, "freeSpaceTargetMB": 1})
                return int(done["bytesFreed"])
    return 0
