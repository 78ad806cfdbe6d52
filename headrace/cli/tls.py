"""The command line of `headrace tls`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.cli.arguments import Failed, add_command


def add_parser(commands: Any) -> None:
    """Add the subcommand `tls` and its action."""
    parser = commands.add_parser("tls", help="certificates for TLS", allow_abbrev=False)
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION", parser_class=type(parser))
    dev = add_command(
        actions, "dev", _make_certificates,
        "make an authority, a server's and a client's certificate for development",
        "Make a certificate authority, a server's certificate for localhost and a client's certificate, valid for a "
        "year. They are for development. Nothing is overwritten.",
        ("headrace tls dev certificates",),
    )  # fmt: skip
    dev.add_argument("path", metavar="DIR", type=Path, help="the folder for the files, created if missing")


def _make_certificates(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    try:
        from headrace.cli.tls_dev import make_certificates
    except ImportError as error:
        raise Failed(f"install what makes certificates: pip install 'headrace[tls]' ({error})") from None
    try:
        authority, _, server, client = make_certificates(arguments.path)
    except OSError as error:
        raise Failed(str(error)) from None
    print(f"headrace serve --tlsMode requireTLS --tlsCertificateKeyFile {server} --tlsCAFile {authority}")
    print(f"mongosh --tls --tlsCAFile {authority} --tlsCertificateKeyFile {client}")
    return 0
