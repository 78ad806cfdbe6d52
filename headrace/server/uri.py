"""The connection string of a server in a program, and the short form of its TLS options."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote_plus

from headrace.dispatch.options import TlsOptions
from headrace.server.core import Core


def host_and_port(core: Core) -> str:
    """Return the first address that the server was told to listen on, as drivers write it."""
    host = core.options.bind_ips[0]
    return f"[{host}]:{core.port}" if ":" in host else f"{host}:{core.port}"


def unix_socket(core: Core) -> str:
    """Return the path of the server's Unix socket."""
    return next(address for address in core.addresses if address.startswith("/"))


def uri_of(core: Core) -> str:
    """Return the connection string for any driver. With TLS it names the authorities that the server itself trusts."""
    options = core.options
    if not options.bind_ips:
        return f"mongodb://{quote_plus(unix_socket(core))}/?directConnection=true"
    words = [f"replicaSet={options.replica_set}"] if options.oplog else []
    if options.tls is not None:
        words.append("tls=true")
        if options.tls.ca_file is not None:
            words.append(f"tlsCAFile={quote_plus(str(options.tls.ca_file))}")
    return f"mongodb://{host_and_port(core)}/{'?' if words else ''}{'&'.join(words)}"


def tls_options(tls: TlsOptions | str | os.PathLike[str] | None) -> TlsOptions | None:
    """Return the TLS options. A folder is one that `headrace tls dev` has made."""
    if tls is None or isinstance(tls, TlsOptions):
        return tls
    folder = Path(tls).absolute()
    return TlsOptions(folder / "server.pem", ca_file=folder / "ca.pem", allow_connections_without_certificates=True)
