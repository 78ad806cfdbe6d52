"""Run in the background as mongod does: the double fork, the log file, the pid file, the notice to systemd.

Rule: `--fork` returns when the server listens, or with the server's status when it has failed. Until then a pipe joins
the two processes. The server writes its process id, then either the line that says where it listens or its status. If
it dies first, the pipe closes without these.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn

from headrace.server.logs import name_aside

_LISTENS: Final = "listens: "
Announce = Callable[[str], None]
"""A function that the server calls once, with the line that says where it listens."""


def run_in_background(run: Callable[[Announce], int]) -> int:
    """Call `run` in a detached process; return 0 when the server listens, otherwise its status."""
    print("about to fork child process, waiting until server is ready for connections.", flush=True)
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return _wait_until_it_listens(child, reader)
    os.close(reader)
    os.setsid()
    if os.fork():
        os._exit(0)
    _serve_detached(run, writer)


def _wait_until_it_listens(child: int, reader: int) -> int:
    """Read the pid and the line or status from the pipe until it closes; this is the parent's half."""
    with os.fdopen(reader, encoding="utf-8") as pipe:
        lines = pipe.read().splitlines()
    os.waitpid(child, 0)
    if lines:
        print(f"forked process: {lines[0]}")
    if len(lines) < 2 or not lines[1].startswith(_LISTENS):
        status = int(lines[1]) if len(lines) > 1 else 1
        print(f"ERROR: child process failed, exited with {status}; its log says why", file=sys.stderr)
        return status
    print(lines[1].removeprefix(_LISTENS))
    print("child process started successfully, parent exiting")
    return 0


def _serve_detached(run: Callable[[Announce], int], writer: int) -> NoReturn:
    """Run the server in this process and always exit; this is the server's half."""
    os.write(writer, f"{os.getpid()}\n".encode())
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)

    status, has_announced = 1, False

    def announce(line: str) -> None:
        print(line, flush=True)
        nonlocal has_announced
        has_announced = True
        os.write(writer, f"{_LISTENS}{line}\n".encode())
        os.close(writer)

    try:
        status = run(announce)
    finally:
        if not has_announced:
            os.write(writer, f"{status}\n".encode())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def open_log(path: Path, *, append: bool) -> str | None:
    """Redirect the standard output and error to `path`; unless `append`, rename an existing file with the time.

    The file is made readable by its owner only. Return a warning if others could read it before. Raises OSError, for
    example if `path` is a directory; then nothing is changed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, f"--logpath {path} is a directory; name a file")
    if path.is_file() and not append:
        path.rename(name_aside(path))
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    mode = os.fstat(file).st_mode
    os.close(file)
    if not stat.S_ISREG(mode) or not mode & 0o077:
        return None
    path.chmod(0o600)
    return f"the log {path} was open to others (mode {stat.S_IMODE(mode):04o}); it is its owner's only now"


@contextmanager
def pid_file(path: Path | None) -> Iterator[None]:
    """Keep a file with the process id while the body runs; remove it at the end unless another process replaced it."""
    if path is None:
        yield
        return
    line = f"{os.getpid()}\n"
    path.write_text(line)
    try:
        yield
    finally:
        if path.exists() and path.read_text() == line:
            path.unlink()


def notify_ready() -> None:
    """Notify systemd (`Type=notify`) that clients can connect: a datagram to the socket that NOTIFY_SOCKET names.

    Without the variable, or if the socket fails, do nothing. Source: sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifying:
        notifying.connect(f"\0{address[1:]}" if address[0] == "@" else address)
        notifying.send(b"READY=1")
