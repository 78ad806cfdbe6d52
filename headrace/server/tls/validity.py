"""The subject and the expiry of a server's certificate, found by a client's handshake in memory.

The standard library shows only the other side's certificate. So the server's context talks to a client that trusts only
that certificate.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final

from headrace import limits
from headrace.server.tls.subject import subject_text

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
