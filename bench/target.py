"""The server that is measured: its address, its process, its CPU time; and starting a Headrace of one's own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from logins import CREATE_USER, log_in
from messages import DATABASE, OK, command, reply_document


class Target:
    """A running server. `pid` is None when its process is not on this machine or may not be looked at."""

    def __init__(
        self, name: str, host: str, port: int, pid: int | None = None, tls: ssl.SSLContext | None = None,
        *, auth: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.auth = auth
        """Connections log in as the user of the load."""
        self._tls = tls
        self.address = (host, port)
        self.pid = pid or listener_pid(port)

    def connect(self) -> socket.socket:
        """A new blocking connection, its hello done and its user logged in."""
        connection: socket.socket = socket.create_connection(self.address, timeout=30.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_hostname="localhost")
        call(connection, command({"hello": 1, "client": _CLIENT}, "admin"))
        if self.auth:
            log_in(connection, call)
        return connection

    def cpu_seconds(self) -> float:
        """User and system time of the whole process so far, to the nanosecond; not a number when it cannot be seen.

        Linux gives every process a clock of its CPU time, whose number is made of the process id
        (clock_getcpuclockid(3)); `/proc/PID/stat` tells the same in steps of 10 ms only.
        """
        if self.pid is None or not sys.platform.startswith("linux"):
            return float("nan")
        return time.clock_gettime((~self.pid << 3) | 2)

    def drop(self) -> None:
        """Drop the database of the load, and wait until its rows are removed: they are no cost of what comes next."""
        with self.connect() as connection:
            call(connection, command({"dropDatabase": 1}, DATABASE))
        self.rest()

    def rest(self) -> None:
        """Wait until the server does nothing. What was dropped or deleted is removed in the background."""
        used = -1.0
        while (now := self.cpu_seconds()) - used > 0.01:
            used = now
            time.sleep(0.2)


_CLIENT = {
    "driver": {"name": "headrace-bench", "version": "1"},
    "os": {"type": sys.platform},
    "platform": f"Python {sys.version_info.major}.{sys.version_info.minor}",
}


def receive(connection: socket.socket) -> bytes:
    """The next whole message of a blocking connection."""
    data = connection.recv(65536)
    while len(data) < 4 or len(data) < int.from_bytes(data[:4], "little"):
        more = connection.recv(1 << 20)
        if not more:
            raise ConnectionError("the server closed the connection")
        data += more
    return data


def call(connection: socket.socket, message: bytes) -> dict[str, Any]:
    """Send one command and answer its reply's document; raises RuntimeError for an error."""
    connection.sendall(message)
    data = receive(connection)
    if OK not in data:
        raise RuntimeError(f"the server refused: {reply_document(data)}")
    return reply_document(data)


def listener_pid(port: int) -> int | None:
    """The process of this machine that listens on a TCP port, from /proc; None if there is none to be seen."""
    wanted = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not os.path.exists(table):
            continue
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                wanted.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*") if wanted else ():
        try:
            if any(os.readlink(handle) in wanted for handle in process.glob("fd/*")):
                return int(process.name)
        except OSError:
            continue
    return None


class StartedServer:
    """A Headrace started for the measurement on a new directory, ended and removed with the `with`."""

    def __init__(
        self, directory: Path | None = None, flags: Sequence[str] = (), *, name: str = "headrace", tls: bool = False,
        auth: bool = False, program: Sequence[str] = ("-m", "headrace.cli.main"),
    ) -> None:  # fmt: skip
        """`directory`: where the new directory is made. `flags`: more of the server's command line. `auth`: with
        --auth, and a user for the load. `program`: what Python runs."""
        self.directory = Path(tempfile.mkdtemp(prefix="headrace-bench-", dir=directory))
        self._name = name
        self._auth = auth
        if auth:
            flags = [*flags, "--auth"]
        self._tls: ssl.SSLContext | None = None
        if tls:
            from headrace.cli.tls_dev import make_certificates

            authority, _, server, client = make_certificates(self.directory / "tls")
            flags = [*flags, "--tlsMode", "requireTLS", "--tlsCertificateKeyFile", str(server)]
            flags += ["--tlsCAFile", str(authority)]
            self._tls = ssl.create_default_context(cafile=authority)
            self._tls.load_cert_chain(client)
        words = ["serve", "--dbpath", str(self.directory / "data"), "--port", "0", "--nounixsocket", "--quiet", *flags]
        self._process = subprocess.Popen([sys.executable, *program, *words], stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Target:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if matched := re.search(r"listens on .*?127\.0\.0\.1:(\d+)", line):
                target = Target(self._name, "127.0.0.1", int(matched[1]), self._process.pid, self._tls)
                if self._auth:
                    with target.connect() as connection:
                        call(connection, CREATE_USER)  # by the localhost exception
                    target.auth = True
                return target
        self.__exit__(None, None, None)
        raise RuntimeError("the server did not start")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
