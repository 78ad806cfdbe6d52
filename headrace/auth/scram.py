"""The server's side of SCRAM: the stored credentials of a password, and the conversation that proves its possession.

Stored credentials (a salt, a count of iterations, two keys) reveal the password only to a search by trial.

    C  n,,n=user,r=CNONCE
    S  r=CNONCE+SNONCE,s=SALT,i=ITERATIONS
    C  c=biws,r=CNONCE+SNONCE,p=PROOF
    S  v=SIGNATURE

Sources: RFC 5802, RFC 7677; MongoDB's drivers' specification of authentication. The library `scramp` is not used: it
applies SASLprep to user names, which MongoDB does not, so that some users would not be found; and it refuses salts and
extensions that MongoDB accepts.
"""

from __future__ import annotations

import stringprep
import unicodedata
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any, Final

from headrace import hashing, limits
from headrace.errors import CommandError

SHA_1: Final = "SCRAM-SHA-1"
SHA_256: Final = "SCRAM-SHA-256"
HASHES: Final = {SHA_1: "sha1", SHA_256: "sha256"}
ITERATIONS: Final = {SHA_1: 10_000, SHA_256: 15_000}
"""MongoDB's counts. Existing credentials keep theirs until the password changes."""
SALT_BYTES: Final = {SHA_1: 16, SHA_256: 28}


def failed() -> CommandError:
    """Return the error of every failed login, whatever the reason."""
    return CommandError(18, "Authentication failed.")


@dataclass(frozen=True, slots=True)
class Credentials:
    """The stored credentials of one password for one mechanism."""

    mechanism: str
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    @property
    def document(self) -> dict[str, Any]:
        """The credentials in the form of `admin.system.users`."""
        return {
            "iterationCount": self.iterations, "salt": _text(self.salt), "storedKey": _text(self.stored_key),
            "serverKey": _text(self.server_key),
        }  # fmt: skip

    @classmethod
    def parsed(cls, mechanism: str, document: dict[str, Any]) -> Credentials | None:
        """Return the credentials in a user's document; None if they are unusable, for example after an edit by hand."""
        try:
            salt, stored, server = (b64decode(document[name]) for name in ("salt", "storedKey", "serverKey"))
            iterations = int(document["iterationCount"])
        except (KeyError, TypeError, ValueError):
            return None
        size = len(hashing.digest(HASHES[mechanism]))
        if not salt or len(stored) != size or len(server) != size or iterations < 1:
            return None
        return cls(mechanism, salt, iterations, stored, server)


def derive(mechanism: str, user: str, password: str, salt: bytes, iterations: int | None = None) -> Credentials:
    """Return the credentials of a password. Takes milliseconds. Raises 2 for a password that SASLprep refuses."""
    return _derived(mechanism, prepared(mechanism, user, password), salt, iterations or ITERATIONS[mechanism])


def derived_from_digest(digest: str, salt: bytes) -> Credentials:
    """Return the SCRAM-SHA-1 credentials of a password that a client has digested (`digestPassword: false`)."""
    return _derived(SHA_1, digest.encode(), salt, ITERATIONS[SHA_1])


def _derived(mechanism: str, password: bytes, salt: bytes, iterations: int) -> Credentials:
    from hashlib import pbkdf2_hmac  # imported late, as in `hashing`

    name = HASHES[mechanism]
    salted = pbkdf2_hmac(name, password, salt, iterations)
    stored_key = hashing.digest(name, hashing.keyed(salted, b"Client Key", name))
    return Credentials(mechanism, salt, iterations, stored_key, hashing.keyed(salted, b"Server Key", name))


def prepared(mechanism: str, user: str, password: str) -> bytes:
    """Return the form of a password that a mechanism hashes. Raises 2 for a password that SASLprep refuses."""
    if mechanism == SHA_1:
        return password_digest(user, password).encode()
    try:
        return saslprep(password).encode()
    except ValueError as error:
        raise CommandError(2, f"Error preflighting UTF-8 conversion of the password: {error}") from None


def password_digest(user: str, password: str) -> str:
    """Return the digest that SCRAM-SHA-1 uses as the password, in the form that old clients send."""
    return hashing.md5(f"{user}:mongo:{password}".encode()).hexdigest()


def fake(mechanism: str, name: str, secret: bytes) -> Credentials:
    """Return credentials for a user that does not exist. They have no password, and are the same each time, so that a
    client cannot notice."""
    size = len(hashing.digest(HASHES[mechanism]))
    salt = hashing.keyed(secret, f"{mechanism} {name}".encode(), "sha512")[: SALT_BYTES[mechanism]]
    keys = hashing.keyed(secret, f"{mechanism} keys {name}".encode(), "sha512")
    return Credentials(mechanism, salt, ITERATIONS[mechanism], keys[:size], keys[-size:])


class ClientFirst:
    """A client's first message. Raises 18 if it is not valid."""

    __slots__ = ("bare", "header", "nonce", "user")

    def __init__(self, message: bytes) -> None:
        header, bare = _split_header(message)
        self.header = header
        self.bare = bare
        fields = _fields(bare)
        if [name for name, _ in fields[:2]] != ["n", "r"] or not fields[1][1]:
            raise failed()
        self.nonce = fields[1][1]
        self.user = _unescaped(fields[0][1])


def _split_header(message: bytes) -> tuple[bytes, str]:
    """Return the header and the rest of the message. Channel binding and another user's name in the header are
    refused."""
    if len(message) > limits.SASL_BYTES_MAX or not message.startswith((b"n,,", b"y,,")):
        raise failed()
    try:
        return message[:3], message[3:].decode()
    except UnicodeDecodeError:
        raise failed() from None


def _fields(message: str) -> list[tuple[str, str]]:
    fields = []
    for part in message.split(","):
        name, sign, value = part.partition("=")
        if not sign or len(name) != 1:
            raise failed()
        fields.append((name, value))
    return fields


def _unescaped(name: str) -> str:
    """Return a user's name, in which `=2C` is a comma and `=3D` an equals sign. Other equals signs are refused."""
    if "=" in name.replace("=2C", "").replace("=3D", ""):
        raise failed()
    return name.replace("=2C", ",").replace("=3D", "=")


class Exchange:
    """The conversation after the client's first message: the server's first message, and the check of the client's
    last."""

    __slots__ = ("_first", "_nonce", "credentials", "server_first")

    def __init__(self, first: ClientFirst, credentials: Credentials, nonce: str) -> None:
        """`nonce`: the server's part, fresh for each conversation, so that no conversation can be replayed."""
        self.credentials = credentials
        """The keys for the check of the client's last message."""
        self._first = first
        self._nonce = first.nonce + nonce
        self.server_first = f"r={self._nonce},s={_text(credentials.salt)},i={credentials.iterations}"
        """The server's first message."""

    def finish(self, message: bytes) -> bytes:
        """Return the server's last message. Raises 18 unless the client's message proves that it knows the password."""
        try:
            text = message.decode() if len(message) <= limits.SASL_BYTES_MAX else ""
            fields = dict(_fields(text))
            binding, proof = b64decode(fields["c"], validate=True), b64decode(fields["p"], validate=True)
        except (KeyError, ValueError):
            raise failed() from None
        without_proof = text.rpartition(",p=")[0]
        if binding != self._first.header or fields.get("r") != self._nonce or not without_proof:
            raise failed()
        signed = f"{self._first.bare},{self.server_first},{without_proof}".encode()
        credentials, name = self.credentials, HASHES[self.credentials.mechanism]
        signature = hashing.keyed(credentials.stored_key, signed, name)
        if len(proof) != len(signature):
            raise failed()
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hashing.equal(hashing.digest(name, client_key), credentials.stored_key):
            raise failed()
        return b"v=" + b64encode(hashing.keyed(credentials.server_key, signed, name))


def _text(value: bytes) -> str:
    return b64encode(value).decode()


# SASLprep: the normal form in which passwords are compared. Source: RFC 4013, RFC 3454.


_PROHIBITED: Final = (
    stringprep.in_table_a1, stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3,
    stringprep.in_table_c4, stringprep.in_table_c5, stringprep.in_table_c6, stringprep.in_table_c7,
    stringprep.in_table_c8, stringprep.in_table_c9,
)  # fmt: skip


def saslprep(text: str) -> str:
    """Return the prepared text. Raises ValueError if a character is not allowed, or if no character is left."""
    spaced = (" " if stringprep.in_table_c12(char) else char for char in text if not stringprep.in_table_b1(char))
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", "".join(spaced))
    if text and not prepared:
        raise ValueError("it has only characters that SASLprep leaves out")
    if any(prohibited(char) for char in prepared for prohibited in _PROHIBITED):
        raise ValueError("it has a character that SASLprep prohibits")
    if any(map(stringprep.in_table_d1, prepared)):
        ends = prepared[0], prepared[-1]
        if any(map(stringprep.in_table_d2, prepared)) or not all(map(stringprep.in_table_d1, ends)):
            raise ValueError("it mixes directions of writing as SASLprep prohibits")
    return prepared
