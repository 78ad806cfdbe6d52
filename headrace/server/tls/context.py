"""The conversion of TLS options to an `ssl.SSLContext`. Unreadable files and conflicting options raise `TlsError`.

Rule: nothing older than TLS 1.2, no renegotiation, no compression, no OCSP.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from headrace.dispatch.options import TlsOptions
from headrace.server.protection import OpenKeyFile, require_private_key_file
from headrace.server.tls.validity import OutOfDate, own_certificate

_VERSIONS: Final = {"TLS1_2": ssl.TLSVersion.TLSv1_2, "TLS1_3": ssl.TLSVersion.TLSv1_3}
_PASSWORD_BYTES_MAX: Final = 1024  # OpenSSL's limit


class TlsError(Exception):
    """The TLS options, or the files that they name, cannot be used."""


def new_context(options: TlsOptions) -> ssl.SSLContext:
    """Return a context for new connections, from the present files. Raises `TlsError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    _set_versions(context, options)
    _load_key(context, options.certificate_key_file, options.certificate_key_password)
    _check_dates(context, options.certificate_key_file)
    if options.ca_file is None:
        if not options.allow_connections_without_certificates:
            raise TlsError(
                "--tlsMode needs --tlsCAFile, which client certificates are checked against, or "
                "--tlsAllowConnectionsWithoutCertificates"
            )
        return context
    _load_authorities(context, options.ca_file)
    if options.revocation_file is not None:
        _load_authorities(context, options.revocation_file)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if not options.allow_invalid_certificates:
        is_optional = options.allow_connections_without_certificates
        context.verify_mode = ssl.CERT_OPTIONAL if is_optional else ssl.CERT_REQUIRED
    return context


def server_certificate(options: TlsOptions) -> tuple[str, float] | None:
    """Return the subject of the certificate in the file, and its expiry in seconds since 1970.

    Return None if a client would not see them. Raises `TlsError`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_key(context, options.certificate_key_file, options.certificate_key_password)
    return own_certificate(context)


def _set_versions(context: ssl.SSLContext, options: TlsOptions) -> None:
    allowed = [version for name, version in _VERSIONS.items() if name not in options.disabled_protocols]
    if not allowed:
        raise TlsError("--tlsDisabledProtocols leaves no protocol: TLS1_2 and TLS1_3 are the ones there are")
    context.minimum_version, context.maximum_version = min(allowed), max(allowed)


def _load_key(context: ssl.SSLContext, path: Path, password: str | None) -> None:
    if password is not None and len(password.encode()) > _PASSWORD_BYTES_MAX:
        raise TlsError(f"the password of {path} has more than {_PASSWORD_BYTES_MAX} bytes")
    try:
        require_private_key_file(path)
        context.load_cert_chain(path, password=password or "")  # without a password OpenSSL would ask the terminal
    except OpenKeyFile as error:
        raise TlsError(str(error)) from None
    except ssl.SSLError as error:
        # OpenSSL names the step that failed, not the cause: a wrong password is one of several "bad decrypt" errors.
        raise TlsError(
            f"{path} cannot be used: it must hold a certificate and its private key as PEM, and the password must be "
            f"right ({error.reason or error.strerror or 'no PEM'})"
        ) from None
    except OSError as error:
        raise TlsError(f"cannot read {path}: {error.strerror}") from None


def _check_dates(context: ssl.SSLContext, path: Path) -> None:
    """Raise `TlsError` for a certificate that every client would refuse. mongod does not start with one either."""
    try:
        own_certificate(context)
    except OutOfDate as error:
        raise TlsError(f"the certificate in {path} is expired or not yet valid: {error}") from None


def _load_authorities(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise TlsError(f"{path} holds nothing of that kind as PEM ({error.reason or 'no PEM'})") from None
    except OSError as error:
        raise TlsError(f"cannot read {path}: {error.strerror}") from None
