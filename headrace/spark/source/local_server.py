"""A server for a data directory, started for a job (`path` instead of `uri`), for sessions on this one machine.

`headrace serve` runs in a separate process, because Spark's code may not import the server. This file, run as a
program, supervises it. The supervisor writes the server's address into the directory for the job's other processes
(Spark parses the source's options in several). It stops the server when its owner, the job's process, has ended.

A directory that another server has open is refused: set `uri` to that server's address.
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

from headrace import limits

NOTE: Final = "job-server"
_LISTENS: Final = "headrace listens on "
_DIRECTORY_IN_USE: Final = 100
_LOOK_S: Final = 0.5


class NotStarted(RuntimeError):
    """No server could be started on the directory."""


def uri_of(path: str | Path, *, owner: int | None = None) -> str:
    """Return the connection string of the directory's server. Start it if needed; it ends with the process `owner`.

    The default owner is the Java process that is an ancestor of this process, or this process. Raise NotStarted.
    """
    directory = Path(path).absolute()
    running = _running_server(directory)
    if running is not None:
        return running
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "headrace.spark.source.local_server", str(directory), str(owner or _owner())],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, text=True,
    )  # fmt: skip
    assert supervisor.stdout is not None and supervisor.stderr is not None
    line = supervisor.stdout.readline().strip()
    if line:
        return line
    reason = supervisor.stderr.read().strip()
    if supervisor.wait() == _DIRECTORY_IN_USE:
        return _started_by_another(directory, reason)
    raise NotStarted(reason or f"no server could be started on {directory}")


def _started_by_another(directory: Path, reason: str) -> str:
    """Return the address of the server that another process of this job is starting. Raise NotStarted."""
    until = time.monotonic() + limits.LOCAL_PING_MS_MAX / 1000
    while time.monotonic() < until:
        if uri := _running_server(directory):
            return uri
        time.sleep(0.05)
    raise NotStarted(f"{reason}; give that server's address as 'uri'")


def _running_server(directory: Path) -> str | None:
    """Return the address in the directory's file if a server answers there, otherwise None."""
    try:
        uri = (directory / NOTE).read_text("utf-8").strip()
        with MongoClient[dict[str, object]](uri, serverSelectionTimeoutMS=limits.LOCAL_PING_MS_MAX) as client:
            client.admin.command("ping")
    except (OSError, PyMongoError):
        return None
    return uri


def _owner() -> int:
    """Return the id of the Java process that is an ancestor of this process, or of this process."""
    process = os.getpid()
    while process > 1:
        columns = subprocess.run(
            ["ps", "-o", "ppid=,comm=", "-p", str(process)], capture_output=True, text=True, check=False
        ).stdout.split()
        if len(columns) < 2:
            break
        if Path(columns[1]).name == "java":
            return process
        process = int(columns[0])
    return os.getpid()


def supervise(directory: Path, owner: int) -> int:
    """Serve the directory until the owner has ended, or until SIGTERM. Return the server's exit status."""
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
    sys.exit(supervise(Path(sys.argv[1]), int(sys.argv[2])))
