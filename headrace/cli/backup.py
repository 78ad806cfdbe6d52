"""`headrace backup` archives a data directory; `headrace restore` makes a directory from an archive, at any moment."""

from __future__ import annotations

import argparse
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.arguments import EXIT_FAILED, Failed, add_command, is_uri, terminated_by_signals
from headrace.errors import reason_of

if TYPE_CHECKING:
    from headrace.backup.archive import BackupArchive
    from headrace.backup.remote_source import RemoteSource
    from headrace.backup.restore import Moment
    from headrace.backup.source import Source
    from headrace.backup.writer import ArchiveWriter

_NICENESS: Final = 10
"""The nice value of a backup beside a server, so that the server has the processor first."""
_ANSWER_MS: Final = 60_000
"""How long a server may take to answer."""
_UNITS: Final = {"d": 86400, "h": 3600, "m": 60, "s": 1}
WHILE_STDIN: Final = "--while-stdin"
"""The flag, with --follow, of `headrace serve --backup`: report what is shipped and end with the standard input."""
KEY_VARIABLE: Final = "HEADRACE_BACKUP_KEY"
_DESCRIPTION: Final = (
    "Back up a data directory or a server into an archive, while that runs: at first a snapshot, then only what "
    "the oplog has since. With --follow the oplog is shipped within seconds, so that every moment can be restored. "
    "`headrace backup check DEST` checks an archive: each piece, the log without gaps, and its newest moment restored "
    "into a temporary directory. The status is 1 if a problem is found."
)


def add_parser(commands: Any) -> None:
    """Add the subcommands `backup` and `restore`."""
    backup = add_command(
        commands, "backup", _backup, "back up a data directory while it is in use", _DESCRIPTION,
        (
            "headrace backup data backups",
            "headrace backup data s3://bucket/headrace --follow --retain 7d",
            "headrace backup mongodb://server backups",
            "headrace backup check backups",
        ),
    )  # fmt: skip
    backup.add_argument(
        "source", metavar="DIR|URI|check",
        help="the data directory, or a server, which may be on another machine; `check`: check the archive",
    )  # fmt: skip
    backup.add_argument("archive", metavar="DEST", help="the archive: a folder, or a URL that fsspec knows")
    backup.add_argument("--follow", action="store_true", help="ship the oplog as it is committed, until interrupted")
    backup.add_argument("--snapshot", action="store_true", help="store a new snapshot, even if the archive has one")
    backup.add_argument(
        "--snapshotEvery", metavar="AGE", type=age_ms, default=age_ms("1d"),
        help="with --follow: the age at which the newest snapshot gets a successor (default: 1d)",
    )  # fmt: skip
    backup.add_argument(
        "--retain", metavar="AGE", type=age_ms,
        help="remove what no moment of this age or younger requires (default: remove nothing)",
    )  # fmt: skip
    backup.add_argument(WHILE_STDIN, action="store_true", dest="while_stdin", help=argparse.SUPPRESS)
    add_key(backup)
    restore = add_command(
        commands, "restore", _restore, "make a data directory from an archive of `headrace backup`",
        "Make a data directory as it was at a moment of an archive, by default its end. Documents, indexes, options "
        "and the oplog are those of then, so that resume tokens hold.",
        (
            "headrace restore backups data",
            "headrace restore backups data --at 2026-11-22T10:00:00Z",
        ),
    )  # fmt: skip
    restore.add_argument("archive", metavar="DEST", help="the archive")
    restore.add_argument("path", metavar="DIR", type=Path, help="the data directory to make: empty or missing")
    restore.add_argument(
        "--at", metavar="TOKEN|TIME",
        help="the last event that counts, by its resume token, or a time: all that was committed up to the end of that "
        "second",
    )  # fmt: skip
    add_key(restore)


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add `--keyFile`, which `backup_archive` reads."""
    parser.add_argument(
        "--keyFile", metavar="FILE", type=Path,
        help=f"encrypt the archive with the key in this file, 64 hexadecimal digits (default: ${KEY_VARIABLE}, if set)",
    )  # fmt: skip


def age_ms(word: str) -> int:
    """Parse an age such as 12h; return it in ms. Raises ArgumentTypeError."""
    if len(word) < 2 or word[-1] not in _UNITS or not word[:-1].isdecimal():
        raise argparse.ArgumentTypeError(f"{word!r} is not an age such as 90s, 10m, 12h or 7d")
    return int(word[:-1]) * _UNITS[word[-1]] * 1000


@contextmanager
def failures() -> Iterator[None]:
    """Turn errors that a user can act on into `Failed`."""
    from headrace.backup.archive import DamagedArchive, WrongKey
    from headrace.backup.places import ArchiveInUse
    from headrace.backup.replay import DivergedHistory
    from headrace.backup.restore import NotCovered
    from headrace.backup.source import NoOplog
    from headrace.backup.standby import NoStandby
    from headrace.backup.writer import OtherHistory
    from headrace.store.checksums.transaction import DamagedValue
    from headrace.store.data_file import UnusableDirectory
    from headrace.store.lmdb import DirectoryInUse, ReadersChanged

    try:
        yield
    except (
        ArchiveInUse, DamagedArchive, DamagedValue, DirectoryInUse, DivergedHistory, NoOplog, NoStandby, NotCovered,
        OSError, OtherHistory, ReadersChanged, UnusableDirectory, WrongKey,
    ) as error:  # fmt: skip
        raise Failed(reason_of(error)) from None


def backup_archive(arguments: argparse.Namespace) -> BackupArchive:
    """Return the archive that a command line names, with its key."""
    from headrace.backup.archive import BackupArchive, Sealer, key_of
    from headrace.backup.places import place_of

    text = os.environ.get(KEY_VARIABLE)
    if arguments.keyFile is not None:
        text = arguments.keyFile.read_text()
    return BackupArchive(place_of(arguments.archive), Sealer(None if text is None else key_of(text)))


def _backup(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    with failures(), terminated_by_signals():
        archive = backup_archive(arguments)
        if arguments.source == "check":
            return _check(archive)
        if arguments.while_stdin:
            os.nice(_NICENESS)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # a service manager signals all; the server ends this process
        with archive.place.lock(), source_of(arguments.source) as source:
            return _ship(archive, source, arguments)


@contextmanager
def source_of(word: str) -> Iterator[Source]:
    """Yield the directory or server that a command line names. Raises `Failed`, also for server errors in the body."""
    if not is_uri(word):
        from headrace.backup.source import DirectorySource

        yield DirectorySource(Path(word))
        return
    with remote_source(word) as source:
        yield source


@contextmanager
def remote_source(uri: str) -> Iterator[RemoteSource]:
    """Yield a server as a source. Raises `Failed`, also for server errors in the body."""
    from headrace.backup.remote_source import RemoteSource
    from headrace.cli.connection import connected

    with connected(uri, socketTimeoutMS=_ANSWER_MS) as client:
        yield RemoteSource(client, without_user(uri))


def without_user(uri: str) -> str:
    """Return a connection string without the user and the password."""
    return re.sub(r"(?<=://)[^/]*@", "", uri)


def _ship(archive: BackupArchive, source: Source, arguments: argparse.Namespace) -> int:
    from headrace.backup.writer import ArchiveWriter, Schedule, follow
    from headrace.clock import SystemClock

    writer = ArchiveWriter(archive, source, SystemClock())
    writer.begin()
    for after, through in writer.shipped.lost:
        say(f"the oplog had lost the entries from {after:016x} to {through:016x}: no moment between can be restored")
    writer.shipped.lost.clear()
    writer.ship()
    if arguments.snapshot and not writer.shipped.snapshots:
        writer.snapshot()
    if arguments.retain is not None:
        writer.retain(arguments.retain)
    shipped = writer.shipped
    snapshot = "1 snapshot and " if shipped.snapshots else ""
    print(
        f"{arguments.archive}: stored {snapshot}{shipped.entries} oplog entries; ends at {writer.position:016x}",
        flush=True,
    )
    schedule = Schedule(arguments.snapshotEvery, arguments.retain)
    if arguments.while_stdin:
        follow(writer, schedule, partial(_wait_while_stdin, writer), say, partial(print, flush=True))
        writer.ship()  # the server's last commits
    elif arguments.follow:
        follow(writer, schedule, wait, say)
    return 0


def wait(seconds: float) -> bool:
    """Wait, and return True: only a signal ends the command."""
    threading.Event().wait(seconds)
    return True


def _wait_while_stdin(writer: ArchiveWriter, seconds: float) -> bool:
    """Print the shipped position and wait; return False once the server has closed the standard input."""
    print(f"@ {writer.position:016x}", flush=True)
    return not select.select([0], [], [], seconds)[0]


def say(text: str) -> None:
    """Print a line for people on the standard error."""
    print(f"headrace: {text}", file=sys.stderr, flush=True)


def _check(archive: BackupArchive) -> int:
    from headrace.backup.restore import problems

    found = list(problems(archive))
    for problem in found:
        print(problem)
    if found:
        print(f"{archive.place}: {len(found)} {'problem' if len(found) == 1 else 'problems'}")
        return EXIT_FAILED
    snapshots, segments = archive.snapshots(), archive.segments()
    print(f"{archive.place}: no problems; snapshots {len(snapshots)}, segments of the log {len(segments)}")
    return 0


def _restore(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    from headrace.backup.restore import restore, shown_position

    with failures(), terminated_by_signals():
        restored = restore(backup_archive(arguments), arguments.path, _moment(arguments.at))
    print(
        f"{arguments.path}: restored to {shown_position(restored.position)}, replayed {restored.replayed} oplog entries"
    )
    return 0


def _moment(word: str | None) -> Moment | None:
    """Parse `--at`. Raises `Failed`."""
    from headrace.backup.restore import Moment
    from headrace.cli.tail.start import EARLIEST, start_of
    from headrace.cli.token import parsed_token
    from headrace.values.position import from_timestamp

    if word is None:
        return None
    start = start_of(word)
    if EARLIEST in start:
        raise Failed("--at takes a resume token or a time", 2)
    if "startAfter" in start:
        return Moment(parsed_token(start["startAfter"]["_data"])[1].cluster_time)
    return Moment(from_timestamp(start["startAtOperationTime"]) | 0xFFFFFFFF, is_second=True)
