"""Notify systemd that the server is ready (`Type=notify`).

Source: sd_notify(3). The notice is a datagram to the socket that the environment variable NOTIFY_SOCKET names.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify_ready() -> None:
    """Notify systemd that clients can connect. Without the variable, or if the socket fails, do nothing."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifying:
        notifying.connect(f"\0{address[1:]}" if address[0] == "@" else address)
        notifying.send(b"READY=1")
