"""`headrace standby` makes a directory follow an archive or a server; `headrace promote` lets a server open it."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.arguments import Failed, add_command, is_uri, terminated_by_signals
from headrace.cli.background import notify_ready
from headrace.cli.backup import add_key, backup_archive, failures, remote_source, say, wait, without_user

if TYPE_CHECKING:
    from headrace.backup.standby import Followed


def add_parser(commands: Any) -> None:
    """Add the subcommands `standby` and `promote`."""
    follow = add_command(
        commands, "standby", _follow, "keep a second directory up to date",
        "Make a directory of a server's last commit or an archive's end, and apply to it what comes from then on, "
        "until interrupted. No server opens the directory until it is promoted. Run again after an end, it goes on.",
        (
            "headrace standby mongodb://server data-standby",
            "headrace standby s3://bucket/headrace data --keyFile backup.key",
        ),
    )  # fmt: skip
    follow.add_argument(
        "archive", metavar="URI|DEST", help="a server, or an archive, which `headrace backup --follow` writes"
    )
    follow.add_argument("path", metavar="DIR", type=Path, help="the standby: empty, missing, or one that follows this")
    add_key(follow)
    promote = add_command(
        commands, "promote", _promote, "make a standby a server's directory",
        "End a standby: apply what its archive has, if it follows one, and begin a history of its own, so that "
        "`headrace serve` takes it. "
        "A standby that runs on this machine is ended. End the old server and its backup first.",
        ("headrace promote data-standby", "headrace promote data-standby --withoutArchive"),
    )  # fmt: skip
    promote.add_argument("path", metavar="DIR", type=Path, help="the standby")
    promote.add_argument("--archive", metavar="DEST", help="the archive, if it has moved")
    promote.add_argument(
        "--withoutArchive", action="store_true",
        help="do not ask the archive, which is lost, or whether the server is gone: what was not applied is lost, too",
    )  # fmt: skip
    add_key(promote)


def _follow(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    from headrace.backup.restore import shown_position
    from headrace.backup.standby import Standby

    with failures(), terminated_by_signals(), _followed(arguments) as followed:
        path = arguments.path
        standby = Standby(followed, path)
        try:
            standby.apply()
            print(
                f"{path}: follows {without_user(arguments.archive)} from {shown_position(standby.position)}", flush=True
            )
            notify_ready()
            standby.follow(wait, say)
        finally:
            standby.close()
    return 0


@contextmanager
def _followed(arguments: argparse.Namespace) -> Iterator[Followed]:
    """Yield the archive or server that a standby follows; make the directory if it is missing. Raises `Failed`."""
    from headrace.backup.restore import copy_of, restore

    path, where = arguments.path, arguments.archive
    is_new = not path.exists() or (path.is_dir() and not any(path.iterdir()))
    if is_uri(where):
        from headrace.backup.remote_source import FollowedServer

        with remote_source(where) as source:
            if is_new:
                copy_of(source, path, standby_of=without_user(where))
            yield FollowedServer(source)
        return
    archive = backup_archive(arguments)
    if is_new:
        restore(archive, path, standby_of=_lasting(where))
    yield archive


def _lasting(archive: str) -> str:
    """Return the name of an archive that is valid in any working directory."""
    return archive if "://" in archive else str(Path(archive).absolute())


def _promote(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    from headrace.backup.restore import shown_position
    from headrace.backup.standby import Standby, followed_by

    with failures(), terminated_by_signals():
        followed = followed_by(arguments.path)
        arguments.archive = arguments.archive or followed
        archive = None
        if is_uri(arguments.archive):
            if not arguments.withoutArchive:
                _require_gone(arguments.archive)
        elif not arguments.withoutArchive:
            archive = backup_archive(arguments)
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


def _require_gone(uri: str) -> None:
    """Raise `Failed` if the followed server still answers: its history would diverge from the promoted directory's."""
    from pymongo.errors import ConnectionFailure

    from headrace.cli.connection import connected

    try:
        with connected(uri):
            pass
    except Failed as error:
        if isinstance(error.__cause__, ConnectionFailure):
            return
        raise
    raise Failed(f"{without_user(uri)}, which the standby follows, still answers: end that server first")


def _end_follower(path: Path) -> None:
    """End the process that follows for a standby; no other process opens such a directory. Raises `Failed`."""
    from headrace.store.lmdb import holder_of, wait_until_free

    holder = holder_of(path)
    if holder is None:
        return
    try:
        os.kill(holder, signal.SIGTERM)
    except OSError as error:
        raise Failed(f"the standby with process id {holder} cannot be ended: {error.strerror}") from None
    wait_until_free(path)
