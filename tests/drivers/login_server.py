"""A server with TLS and a user of each kind, to which other languages' drivers and shells log in.

ann@admin, bob@shop     by a password
SUBJECT@$external       by the certificate `client.pem`
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pymongo import MongoClient

import headrace
from headrace.cli.tls_dev import make_certificates
from headrace.dispatch.options import TlsOptions

SUBJECT: Final = "CN=client,OU=Development,O=Headrace"
PASSWORD: Final = "p w,=:@/ I\u00adX\u2168"
"""With characters that a URI escapes, and some that SASLprep removes or maps."""
IN_SHOP: Final = [{"role": "readWrite", "db": "shop"}]


@contextmanager
def login_server(certificates: Path) -> Iterator[tuple[headrace.Server, MongoClient[dict[str, Any]]]]:
    """The server, and a client of it that may do everything. `certificates`: a folder, which is made."""
    make_certificates(certificates)
    tls = TlsOptions(
        certificate_key_file=certificates / "server.pem", ca_file=certificates / "ca.pem",
        allow_connections_without_certificates=True,
    )  # fmt: skip
    users: dict[str, Any] = {
        "ann": {"pwd": PASSWORD, "roles": IN_SHOP}, "root": {"pwd": "root", "roles": ["root"]},
    }  # fmt: skip
    authority = str(certificates / "ca.pem")
    with (
        headrace.Server(users=users, tls=tls) as server,
        MongoClient[dict[str, Any]](
            server.address, username="root", password="root", tls=True, tlsCAFile=authority
        ) as root,
    ):
        root["shop"].command("createUser", "bob", pwd=PASSWORD, roles=IN_SHOP)
        root["$external"].command("createUser", SUBJECT, roles=IN_SHOP)
        yield server, root
