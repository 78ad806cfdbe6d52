r"""The subject of a certificate as MongoDB writes it, which is an X.509 user's name: RFC 2253, UTF-8 as it is.

    CN=app,OU=Kernel\, Users,O=Example,C=DE

The last name of the certificate comes first. `, + " \ < > ;` are escaped by a backslash, and so are a space or `#` at
the beginning and a space at the end; control characters are `\` and two hexadecimal digits.

Source: RFC 2253, section 2; the names that MongoDB's tests of X.509 users log in with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

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
