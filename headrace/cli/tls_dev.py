"""`headrace tls dev DIR`: an authority, a server's and a client's certificate for development.

    ca.pem       the authority's certificate: what clients and servers trust
    ca-key.pem   the authority's private key, which signs further certificates
    server.pem   certificate and private key for localhost and this machine's name
    client.pem   certificate and private key of CN=client,OU=Development,O=Headrace

Existing files are never overwritten. The private keys are not encrypted, as they are for development only.
"""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

FILES: Final = ("ca.pem", "ca-key.pem", "server.pem", "client.pem")
DAYS: Final = 397
"""How long the certificates are valid: the longest time that browsers and TLS libraries accept."""


def make_certificates(folder: Path, *, now: datetime | None = None) -> list[Path]:
    """Make the four files, and the folder if it is missing. Raises FileExistsError before making any."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = [folder / name for name in FILES]
    for path in paths:
        if path.exists():
            raise FileExistsError(f"{path} is there already; remove it, or give another folder")
    start = (now or datetime.now(UTC)) - timedelta(minutes=5)
    authority = Authority(start)
    names = [x509.DNSName(name) for name in dict.fromkeys(["localhost", platform.node() or "localhost"])]
    addresses = [x509.IPAddress(ip_address(address)) for address in ("127.0.0.1", "::1")]
    server = authority.issue(["Headrace", "Development servers", "localhost"], [*names, *addresses])
    client = authority.issue(["Headrace", "Development", "client"], [])
    contents = [authority.certificate_pem, authority.key_pem, server, client]
    for path, content in zip(paths, contents, strict=True):
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
    return paths


class Authority:
    """A certificate authority with a new key."""

    def __init__(self, start: datetime, title: str = "Headrace development authority") -> None:
        self._start = start
        self._key = generate_private_key(SECP256R1())
        self._name = _name(["Headrace", "Development authority", title])
        self._certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate_pem = self._certificate.public_bytes(serialization.Encoding.PEM)
        self.key_pem = _pem(self._key)

    def issue(
        self, subject: list[str] | x509.Name, names: list[x509.GeneralName], password: str | None = None
    ) -> bytes:
        """Return a certificate and its private key as PEM: a server's if there are `names`, otherwise a client's.

        `subject`: organization, unit and common name. `password` encrypts the key.
        """
        key = generate_private_key(SECP256R1())
        usage = ExtendedKeyUsageOID.SERVER_AUTH if names else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            self._builder(_name(subject) if isinstance(subject, list) else subject, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM) + _pem(key, password)

    def _builder(self, subject: x509.Name, key: EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._start)
            .not_valid_after(self._start + timedelta(days=DAYS))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )


def _name(subject: list[str]) -> x509.Name:
    organization, unit, common = subject
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _pem(key: EllipticCurvePrivateKey, password: str | None = None) -> bytes:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password.encode())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
