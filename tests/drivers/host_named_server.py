"""A plugin of pytest for pymongo's tests of TLS: the host `server`, which no certificate names, is this machine.

Their authors have an alias in `/etc/hosts` instead.
"""

from __future__ import annotations

import socket
from typing import Any

_getaddrinfo, _gethostbyname = socket.getaddrinfo, socket.gethostbyname


def _resolved(host: Any, *rest: Any, **named: Any) -> Any:
    return _getaddrinfo("localhost" if host == "server" else host, *rest, **named)


def _address(host: str) -> str:
    return _gethostbyname("localhost" if host == "server" else host)


socket.getaddrinfo = _resolved
socket.gethostbyname = _address
