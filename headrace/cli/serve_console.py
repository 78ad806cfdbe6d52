"""`headrace serve --console`: the console as a process beside the server. It ends with the server.

    server ──stdin──▶ console    open as long as the server lives, however it ends

The console connects as any client does, and signs its users in. It costs the server a connection and no thread.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import quote_plus

from headrace.cli.arguments import port_argument
from headrace.cli.console.command import MISSING, WHILE_STDIN
from headrace.cli.tls_flags import BadOptions
from headrace.dispatch.options import ServerOptions
from headrace.server.child_process import child_environment, python_command

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
