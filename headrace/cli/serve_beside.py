"""`headrace serve --backup` and `--console`: processes beside the server, which end with it.

    server ──stdin──▶ console    open as long as the server lives, however it ends

A console connects as any client does, and signs its users in. It costs the server a connection and no thread. The
backup process is started elsewhere (`server/daemon.py`); its flags and its command line are here.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus

from headrace.cli.arguments import port_argument
from headrace.cli.backup import WHILE_STDIN as BACKUP_WHILE_STDIN
from headrace.cli.backup import age_ms
from headrace.cli.console.command import MISSING, WHILE_STDIN
from headrace.cli.tls_flags import BadOptions
from headrace.dispatch.options import ServerOptions
from headrace.server.child_process import child_environment, python_command


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
    words = ["backup", str(path), archive, "--follow", BACKUP_WHILE_STDIN]
    for flag, value in given.items():
        if value is not None:
            words += [flag, value]
    return words


STOP_SECONDS: Final = 5.0


def add_console_flags(add: Callable[..., Any]) -> None:
    """Add `--console`."""
    add(
        "--console", metavar="PORT", nargs="?", type=port_argument, const=0,
        help="also serve `headrace console` on this loopback port (default: a free one); prints its address",
    )  # fmt: skip


def console_words(arguments: argparse.Namespace, options: ServerOptions) -> list[str] | None:
    """Return the command line of the server's console; None without `--console`. Raises `BadOptions`."""
    if arguments.console is None:
        return None
    if options.logpath is not None:
        raise BadOptions(
            "--console prints an address with a token, not for a log: run `headrace console` beside the server"
        )
    if not options.port:
        raise BadOptions("--console needs a --port above 0")
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise BadOptions(MISSING)
    return ["console", _uri(options), "--port", str(arguments.console), WHILE_STDIN]


def _uri(options: ServerOptions) -> str:
    """Return the server's address for a client on this machine, without credentials. Raises `BadOptions`."""
    if options.unix_socket_prefix is not None:
        return f"mongodb://{quote_plus(str(options.unix_socket_prefix / f'mongodb-{options.port}.sock'))}"
    if options.tls is not None:
        raise BadOptions("--console needs the Unix socket where clients need TLS: leave out --nounixsocket")
    host = options.bind_ips[0]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"mongodb://{f'[{host}]' if ':' in host else host}:{options.port}"


class ServedConsole:
    """The process of a server's console; without a command line `start` does nothing."""

    def __init__(self, words: list[str] | None) -> None:
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the console, which prints its address on the server's standard output."""
        if self._words is None:
            return
        # In a new session, so that Ctrl-C in the terminal reaches only the server.
        self._process = subprocess.Popen(
            python_command("headrace", *self._words), env=child_environment(), start_new_session=True,
            stdin=subprocess.PIPE,
        )  # fmt: skip

    def stop(self) -> None:
        """End the console and wait until it has ended."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
