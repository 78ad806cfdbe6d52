"""The flags of `headrace serve` for a continuous backup, and the command line of the backup process."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.cli.backup import WHILE_STDIN, age_ms
from headrace.cli.tls_flags import BadOptions


def add_backup_flags(add: Callable[..., Any]) -> None:
    """Add the flags of `headrace backup --follow`, with `backup` before their names."""
    add("--backup", metavar="DEST", help="back up the directory into this archive, as `headrace backup --follow` does")
    add(
        "--backupKeyFile", metavar="FILE", type=Path,
        help="encrypt the archive with the key in this file, 64 hexadecimal digits",
    )  # fmt: skip
    add(
        "--backupRetain", metavar="AGE", type=_age,
        help="remove what no moment of this age or younger requires (default: remove nothing)",
    )  # fmt: skip
    add(
        "--backupSnapshotEvery", metavar="AGE", type=_age,
        help="the age at which the newest snapshot gets a successor (default: 1d)",
    )  # fmt: skip


def _age(word: str) -> str:
    age_ms(word)
    return word


def backup_words(arguments: argparse.Namespace, path: Path) -> list[str] | None:
    """Return the command line that backs up the directory `path`; None without `--backup`. Raises `BadOptions`."""
    given = {
        "--keyFile": arguments.backupKeyFile and str(arguments.backupKeyFile.absolute()),
        "--retain": arguments.backupRetain,
        "--snapshotEvery": arguments.backupSnapshotEvery,
    }
    if arguments.backup is None:
        for flag, value in given.items():
            if value is not None:
                raise BadOptions(f"--backup{flag[2].upper()}{flag[3:]} needs --backup")
        return None
    if arguments.no_oplog:
        raise BadOptions("--backup goes by the oplog, and cannot be given with --no-oplog")
    archive = arguments.backup if "://" in arguments.backup else str(Path(arguments.backup).absolute())
    words = ["backup", str(path), archive, "--follow", WHILE_STDIN]
    for flag, value in given.items():
        if value is not None:
            words += [flag, value]
    return words
