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
