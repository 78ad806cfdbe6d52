"""A server for a data directory, started for a job (`path` instead of `uri`): for sessions on this one machine.

`headrace serve` runs in a process of its own, since Spark may not import the server, with a keeper beside it: this file
run as a program. The keeper writes the address into the directory, where the job's other processes find it (Spark asks
for the source's options in several), and ends the server when the job's process, its owner, is gone.

A directory that a server already has open is not taken from it: give that server's `uri`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from pymongo import MongoClient
from pymongo.errors import PyMongoError

NOTE: Final = "job-server"
_LISTENS: Final = "headrace listens on "
_DIRECTORY_IN_USE: Final = 100
_PING_MS: Final = 2000
_LOOK_S: Final = 0.5


class NotStarted(RuntimeError):
    """No server could be started on the directory."""


def uri_of(path: str | Path, *, owner: int | None = None) -> str:
    """The connection string of the directory's server, started if there is none; it ends with the process `owner`.

    By default that is the Java process around this one, or this one where there is none. Raises NotStarted.
    """
    directory = Path(path).absolute()
    found = _noted(directory)
    if found is not None:
        return found
    keeper = subprocess.Popen(
        [sys.executable, "-m", "headrace.spark.source.local_server", str(directory), str(owner or _owner())],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, text=True,
    )  # fmt: skip
    assert keeper.stdout is not None and keeper.stderr is not None
    line = keeper.stdout.readline().strip()
    if line:
        return line
    reason = keeper.stderr.read().strip()
    if keeper.wait() == _DIRECTORY_IN_USE:
        return _started_by_another(directory, reason)
    raise NotStarted(reason or f"no server could be started on {directory}")


def _started_by_another(directory: Path, reason: str) -> str:
    """The server that another process of this job starts just now."""
    until = time.monotonic() + _PING_MS / 1000
    while time.monotonic() < until:
        if found := _noted(directory):
            return found
        time.sleep(0.05)
    raise NotStarted(f"{reason}; give that server's address as 'uri'")


def _noted(directory: Path) -> str | None:
    """The address that the directory's note tells, if a server is there."""
    try:
        uri = (directory / NOTE).read_text("utf-8").strip()
        with MongoClient[dict[str, object]](uri, serverSelectionTimeoutMS=_PING_MS) as client:
            client.admin.command("ping")
    except (OSError, PyMongoError):
        return None
    return uri


def _owner() -> int:
    """The Java process that this one descends from, or this process itself."""
    process = os.getpid()
    while process > 1:
        told = subprocess.run(
            ["ps", "-o", "ppid=,comm=", "-p", str(process)], capture_output=True, text=True, check=False
        ).stdout.split()
        if len(told) < 2:
            break
        if Path(told[1]).name == "java":
            return process
        process = int(told[0])
    return os.getpid()


def keep(directory: Path, owner: int) -> int:
    """Serve the directory until the owner is gone or a signal comes; the server's status."""
    command = [sys.executable, "-m", "headrace.cli.main", "serve", "--quiet", "--nounixsocket", "--port", "0"]
    server = subprocess.Popen([*command, "--dbpath", str(directory)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    line = server.stdout.readline()
    if not line.startswith(_LISTENS):
        return server.wait()
    note = directory / NOTE
    uri = f"mongodb://{line.removeprefix(_LISTENS).partition(',')[0]}/?directConnection=true"
    note.write_text(uri + "\n", "utf-8")
    print(uri, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    while server.poll() is None:
        if not _alive(owner):
            server.terminate()
        try:
            server.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            continue
    note.unlink(missing_ok=True)
    return server.returncode


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    sys.exit(keep(Path(sys.argv[1]), int(sys.argv[2])))
