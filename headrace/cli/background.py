"""Running in the background as mongod does it: the double fork, the log file, the pid file.

Rule: `--fork` returns only when the server listens, or when it has failed and said why, and then with its status. The
two processes are joined by a pipe for that long: the server writes its process id into it, then its one line or its
status; if it dies first, the pipe closes without either.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

from headrace.server.log.files import name_aside

_LISTENS: Final = "listens: "
Announce = Callable[[str], None]
"""Called once, with the line that says where the server listens."""


def run_in_background(run: Callable[[Announce], int]) -> int:
    """Call `run` in a process of its own, detached from the terminal; 0 when it listens, otherwise its status."""
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
    """The parent's half: the pid comes first through the pipe, then the line, then its end."""
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
    """The server's half; leaves the process, whatever happens."""
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
    """Send what is printed to `path` from now on; an existing file is renamed with the current time unless `append`.

    Raises OSError, for a directory among others, and then nothing is changed. The file is made its owner's only; the
    answer is a warning if it was open to others.
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
    """A file with the process id while the body runs, removed at the end if it is still this process's."""
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
