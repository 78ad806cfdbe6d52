"""`headrace standby` and `headrace promote`: a directory that follows an archive, and a server's directory of it."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.cli.arguments import Failed, add_command, terminated_by_signals
from headrace.cli.backup import add_key, backup_archive, failures, say
from headrace.cli.readiness import notify_ready


def add_parser(commands: Any) -> None:
    """The subcommands `standby` and `promote`."""
    follow = add_command(
        commands, "standby", _follow, "keep a second directory up to date from an archive",
        "Make a directory of an archive's end, and apply to it what is shipped from then on, until interrupted. No "
        "server opens the directory until it is promoted. Run again after an end, it goes on.",
        ("headrace standby backups data-standby", "headrace standby s3://bucket/headrace data --keyFile backup.key"),
    )  # fmt: skip
    follow.add_argument("archive", metavar="DEST", help="the archive, which `headrace backup --follow` writes")
    follow.add_argument("path", metavar="DIR", type=Path, help="the standby: empty, missing, or one of this archive")
    add_key(follow)
    promote = add_command(
        commands, "promote", _promote, "make a standby a server's directory",
        "End a standby: apply what its archive has, and begin a history of its own, so that `headrace serve` takes it. "
        "A standby that runs on this machine is ended. End the old server and its backup first.",
        ("headrace promote data-standby", "headrace promote data-standby --withoutArchive"),
    )  # fmt: skip
    promote.add_argument("path", metavar="DIR", type=Path, help="the standby")
    promote.add_argument("--archive", metavar="DEST", help="the archive, if it has moved")
    promote.add_argument(
        "--withoutArchive", action="store_true",
        help="do not ask the archive, which is lost: what was not applied yet is lost, too",
    )  # fmt: skip
    add_key(promote)


def _follow(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    from headrace.backup.restore import restore, shown_position
    from headrace.backup.standby import Standby

    with failures(), terminated_by_signals():
        archive = backup_archive(arguments)
        path = arguments.path
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            restore(archive, path, standby_of=_lasting(arguments.archive))
        standby = Standby(archive, path)
        try:
            standby.apply()
            print(f"{path}: follows {arguments.archive} from {shown_position(standby.position)}", flush=True)
            notify_ready()
            standby.follow(_wait, say)
        finally:
            standby.close()
    return 0


def _lasting(archive: str) -> str:
    """The name of an archive from any working directory."""
    return archive if "://" in archive else str(Path(archive).absolute())


def _wait(seconds: float) -> bool:
    threading.Event().wait(seconds)
    return True


def _promote(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    from headrace.backup.restore import shown_position
    from headrace.backup.standby import Standby, followed_archive

    with failures(), terminated_by_signals():
        followed = followed_archive(arguments.path)
        arguments.archive = arguments.archive or followed
        archive = None if arguments.withoutArchive else backup_archive(arguments)
        _end_follower(arguments.path)
        standby = Standby(archive, arguments.path)
        try:
            promotion = standby.promote()
        finally:
            standby.close()
    print(
        f"{arguments.path}: promoted, with all up to {shown_position(promotion.last)}; "
        f"its own history begins at {promotion.begins:016x}"
    )
    return 0


def _end_follower(path: Path) -> None:
    """End the process that keeps a standby up to date, the only one that opens such a directory. Raises `Failed`."""
    from headrace.store.lmdb import holder_of, wait_until_free

    holder = holder_of(path)
    if holder is None:
        return
    try:
        os.kill(holder, signal.SIGTERM)
    except OSError as error:
        raise Failed(f"the standby with process id {holder} cannot be ended: {error.strerror}") from None
    wait_until_free(path)
