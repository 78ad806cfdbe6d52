"""Ports for servers that begin to listen later, or again after each end."""

from __future__ import annotations

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """One that is free, and stays so: the system gives away those from 32768 on (on some, from 49152) by itself."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def is_free(port: int) -> bool:
    """Whether no process listens on this port of the loopback address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
