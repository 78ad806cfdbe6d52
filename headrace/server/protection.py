"""Protection of a server: addresses that other machines reach need users or consent, and files are private.

Rule: a server that lets every client read and write never listens on an address that other machines reach, unless its
operator consents (`--allowUnauthenticated`).
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from headrace.dispatch.options import ServerOptions
from headrace.dispatch.request import is_loopback
from headrace.store.data_file import DATA_FILE
from headrace.store.lmdb import LOCK_FILE, NEW_FILE, READERS_FILE
from headrace.store.temporary.spill_file import FOLDER as SPILL_FOLDER

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_NAMES: Final = frozenset({DATA_FILE, LOCK_FILE, NEW_FILE, READERS_FILE, SPILL_FOLDER})
"""The files that the server itself puts into a data directory."""


class UnprotectedAddress(Exception):
    """Other machines could reach a server without authentication, and its operator has not consented."""


class OpenKeyFile(Exception):
    """Users other than its owner can read or replace a file with a private key."""


def exposed_addresses(sockets: Iterable[socket.socket]) -> list[str]:
    """Return those addresses of bound sockets that other machines may reach."""
    names = [bound.getsockname() for bound in sockets]
    return [name[0] for name in names if isinstance(name, tuple) and not is_loopback(name[0])]


def require_consent(options: ServerOptions, sockets: Iterable[socket.socket]) -> None:
    """Raise `UnprotectedAddress` if sockets expose a server without users, unless the operator consents."""
    exposed = exposed_addresses(sockets)
    if exposed and not options.auth and not options.allow_unauthenticated:
        raise UnprotectedAddress(
            f"refusing to listen on {', '.join(exposed)}: access control is not enabled, so that whoever reaches the "
            "address could read, change and remove everything. Give --auth, listen on 127.0.0.1, or give "
            "--allowUnauthenticated"
        )


def exposure_warning(sockets: Iterable[socket.socket]) -> str | None:
    """Return the start's warning for an operator who has consented; None if nothing is exposed."""
    exposed = exposed_addresses(sockets)
    if not exposed:
        return None
    return (
        f"Access control is not enabled for the database, and the server listens on {', '.join(exposed)} "
        "(--allowUnauthenticated): whoever can reach it can read, change and remove everything"
    )


def make_directory_private(path: Path) -> str | None:
    """Remove other users' access to a data directory. Return a warning if that was necessary or is impossible.

    The files in it are made private when they are opened. A directory with foreign files is not changed, because it may
    have other uses.
    """
    status = path.stat()
    if not status.st_mode & _OTHERS:
        return None
    if _NAMES.issuperset(os.listdir(path)) and not status.st_mode & stat.S_ISVTX:
        try:
            path.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)
        except OSError:
            pass
        else:
            return f"the data directory {path} was open to others (mode {_octal(status)}); it is its owner's only now"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can replace the files in the data directory {path} (mode {_octal(status)}): chmod go-w {path}"
    return None


def require_private_key_file(path: Path) -> None:
    """Raise `OpenKeyFile` unless only its owner can access a private key file. Root's file may be readable by its
    group."""
    status = path.stat()
    allowed = stat.S_IRGRP if status.st_uid == 0 else 0
    if stat.S_ISREG(status.st_mode) and status.st_mode & _OTHERS & ~allowed:
        raise OpenKeyFile(f"permissions on {path} are too open (mode {_octal(status)}): chmod 600 {path}")


def _octal(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):04o}"
