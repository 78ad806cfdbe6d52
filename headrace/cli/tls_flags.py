"""mongod's TLS flags, and the `TlsOptions` that they stand for."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from headrace.dispatch.options import TlsOptions

PASSWORD_VARIABLE: Final = "HEADRACE_TLS_CERTIFICATE_KEY_FILE_PASSWORD"
"""The environment variable of the key's password. Other users of the machine can see a command line, but not this."""

_PASSWORD_FLAG: Final = "--tlsCertificateKeyFilePassword"
_PROTOCOLS: Final = ("TLS1_0", "TLS1_1", "TLS1_2", "TLS1_3")
_ALLOW_WITHOUT: Final = "--tlsAllowConnectionsWithoutCertificates"


class BadOptions(Exception):
    """The error of flags that do not go together or name unusable files."""


def add_tls_flags(add: Callable[..., Any]) -> None:
    """Add the flags with `add`, an `ArgumentParser.add_argument`."""
    add(
        "--tlsMode",
        choices=("disabled", "allowTLS", "preferTLS", "requireTLS"),
        help="whether clients speak TLS: none, those that want to (allowTLS, preferTLS) or all (default: disabled)",
    )
    add("--tlsCertificateKeyFile", metavar="FILE", type=Path, help="the server's certificate and private key, as PEM")
    add(_PASSWORD_FLAG, metavar="TEXT", help=f"what the private key is encrypted with (default: ${PASSWORD_VARIABLE})")
    add("--tlsCAFile", metavar="FILE", type=Path, help="authorities that clients' certificates are checked against")
    add("--tlsCRLFile", metavar="FILE", type=Path, help="list of revoked certificates of clients, as PEM")
    add(_ALLOW_WITHOUT, action="store_true", help="clients need no certificate; one that is sent is checked")
    add("--tlsAllowInvalidCertificates", action="store_true", help="ask no client for a certificate; no X.509 users")
    add(
        "--tlsDisabledProtocols",
        metavar="NAMES",
        type=_protocols,
        default=frozenset(),
        help="protocols not to speak, separated by commas: TLS1_2, TLS1_3 (TLS1_0 and TLS1_1 never are spoken)",
    )


def _protocols(text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(",")) - {"none"}
    unknown = sorted(names.difference(_PROTOCOLS))
    if unknown:
        raise argparse.ArgumentTypeError(f"Unrecognized disabledProtocols '{unknown[0]}'")
    return names


def tls_options_of(arguments: argparse.Namespace) -> TlsOptions | None:
    """Return the TLS options of a parsed command line, None for no TLS. Raises `BadOptions`."""
    given = {name: value for name, value in vars(arguments).items() if name.startswith("tls") and value}
    mode = given.pop("tlsMode", "disabled")
    if mode == "disabled":
        if given:
            raise BadOptions(f"--{min(given)} needs --tlsMode allowTLS, preferTLS or requireTLS")
        return None
    if arguments.tlsCertificateKeyFile is None:
        raise BadOptions("--tlsMode needs --tlsCertificateKeyFile")
    return TlsOptions(
        certificate_key_file=arguments.tlsCertificateKeyFile.absolute(),
        mode=mode,
        certificate_key_password=arguments.tlsCertificateKeyFilePassword or os.environ.get(PASSWORD_VARIABLE),
        ca_file=arguments.tlsCAFile and arguments.tlsCAFile.absolute(),
        revocation_file=arguments.tlsCRLFile and arguments.tlsCRLFile.absolute(),
        allow_connections_without_certificates=arguments.tlsAllowConnectionsWithoutCertificates,
        allow_invalid_certificates=arguments.tlsAllowInvalidCertificates,
        disabled_protocols=arguments.tlsDisabledProtocols,
    )


def without_passwords(words: Sequence[str]) -> list[str]:
    """Return a command line for `getCmdLineOpts`: as in MongoDB, `<password>` replaces passwords."""
    shown: list[str] = []
    for word in words:
        flag, sign, _ = word.partition("=")
        if shown and shown[-1] == _PASSWORD_FLAG:
            shown.append("<password>")
        elif flag == _PASSWORD_FLAG and sign:
            shown.append(f"{flag}=<password>")
        else:
            shown.append(word)
    return shown
