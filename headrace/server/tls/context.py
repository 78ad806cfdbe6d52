"""The TLS context of a server. Unreadable files, conflicting options and an expired certificate raise `TlsError`.

Rule: nothing older than TLS 1.2, no renegotiation, no compression, no OCSP.

The standard library shows only the other side's certificate. So the server's context talks in memory to a client that
trusts only that certificate, to find its own subject and expiry.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from headrace import limits
from headrace.dispatch.options import TlsOptions
from headrace.server.protection import OpenKeyFile, require_private_key_file

SHORT_NAMES: Final = {
    "businessCategory": "businessCategory",
    "commonName": "CN",
    "countryName": "C",
    "description": "description",
    "dnQualifier": "dnQualifier",
    "domainComponent": "DC",
    "emailAddress": "emailAddress",
    "generationQualifier": "generationQualifier",
    "givenName": "GN",
    "initials": "initials",
    "localityName": "L",
    "name": "name",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "pseudonym": "pseudonym",
    "serialNumber": "serialNumber",
    "stateOrProvinceName": "ST",
    "streetAddress": "street",
    "surname": "SN",
    "title": "title",
    "userId": "UID",
}
"""OpenSSL's names of an attribute: in a certificate's dictionary and in a subject. Other attributes are numbers in
both."""

_ESCAPED: Final = frozenset(',+"\\<>;')

Name = Iterable[Iterable[tuple[str, str]]]
"""A name as `ssl.SSLSocket.getpeercert` returns it: a sequence of relative names, each with some attributes."""


def subject_text(name: Name) -> str:
    """Return a subject as text, such as `CN=app,O=Example`."""
    relative = [list(attributes) for attributes in name]
    return ",".join(
        "+".join(f"{SHORT_NAMES.get(kind, kind)}={_escaped(value)}" for kind, value in reversed(attributes))
        for attributes in reversed(relative)
    )


def _escaped(value: str) -> str:
    last = len(value) - 1
    return "".join(
        f"\\{letter}"
        if letter in _ESCAPED or (letter == " " and at in (0, last)) or (letter == "#" and at == 0)
        else f"\\{ord(letter):02X}"
        if letter < " " or letter == "\x7f"
        else letter
        for at, letter in enumerate(value)
    )


_DAY: Final = 86_400.0
_ROUND_COUNT_MAX: Final = 8  # a handshake needs three at most
_OUT_OF_DATE: Final = frozenset({9, 10})
"""OpenSSL's error numbers for a certificate that is not yet valid, and for an expired one."""


class OutOfDate(Exception):
    """The certificate has expired, or is not yet valid."""


def own_certificate(context: ssl.SSLContext) -> tuple[str, float] | None:
    """Return the subject of a server's certificate, and its expiry in seconds since 1970.

    Return None if a client would not see them.

    The context must not ask clients for certificates yet. Raises `OutOfDate`.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    try:
        certificate = _handshake(context, client).getpeercert(binary_form=True)
        if certificate is None:
            return None
        client.load_verify_locations(cadata=certificate)
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        client.verify_mode = ssl.CERT_REQUIRED
        shown: dict[str, Any] = _handshake(context, client).getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _OUT_OF_DATE:
            raise OutOfDate(error.verify_message) from None
        return None
    except ssl.SSLError:
        return None
    until = shown.get("notAfter")
    return (subject_text(shown["subject"]), ssl.cert_time_to_seconds(until)) if isinstance(until, str) else None


def expiry_warning(path: Path, until: float, now: float) -> str | None:
    """Return the warning for a certificate that expires soon; None if there is time."""
    if until - now > limits.CERTIFICATE_WARNING_DAYS * _DAY:
        return None
    return f"the certificate in {path} expires in {max(0, int((until - now) // _DAY))} days: clients refuse it then"


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """Run a handshake; return the client's side. Raises `ssl.SSLError`."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    pending = sides
    for _ in range(_ROUND_COUNT_MAX):
        pending = [side for side in pending if not _has_ended(side)]
        if not pending:
            return sides[0]
    raise ssl.SSLError("the handshake does not end")


def _has_ended(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


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
