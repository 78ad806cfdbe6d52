"""SCRAM, byte for byte as its specifications have it; and what is no conversation."""

from __future__ import annotations

from base64 import b64decode

import pytest

from headrace.auth.scram import (
    SHA_1,
    SHA_256,
    ClientFirst,
    Credentials,
    Exchange,
    derive,
    derived_from_digest,
    fake,
    password_digest,
    saslprep,
)
from headrace.errors import CommandError

# RFC 7677, section 3, and as that MongoDB's drivers' specification, SCRAM-SHA-256.
RFC_7677 = (
    SHA_256,
    "pencil",
    "W22ZaJ0SNY7soEsUEjb6gQ==",
    4096,
    "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)
# MongoDB's drivers' specification of authentication, SCRAM-SHA-1 (the password is digested with the user's name).
MONGODB_SHA_1 = (
    SHA_1,
    "pencil",
    "rQ9ZY3MntBeuP3E1TDVC4w==",
    10000,
    "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
    "Ho+Vgk7qvUOKUwuWLIWg4l/9SraGMHEE",
    "r=fyko+d2lbbFgONRv9qkxdawLHo+Vgk7qvUOKUwuWLIWg4l/9SraGMHEE,s=rQ9ZY3MntBeuP3E1TDVC4w==,i=10000",
    "c=biws,r=fyko+d2lbbFgONRv9qkxdawLHo+Vgk7qvUOKUwuWLIWg4l/9SraGMHEE,p=MC2T8BvbmWRckDw8oWl5IVghwCY=",
    "v=UMWeI25JD1yNYZRMpZ4VHvhZ9e0=",
)
# RFC 5802, section 5, whose password is not digested.
RFC_5802 = (
    "QSXCR+Q6sek8bf92",
    4096,
    "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
    "3rfcNHYJY1ZVvWVs7j",
    "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
    "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
    "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
)


@pytest.mark.parametrize("conversation", [RFC_7677, MONGODB_SHA_1], ids=["RFC 7677", "MongoDB, SHA-1"])
def test_the_conversations_of_the_specifications(
    conversation: tuple[str, str, str, int, str, str, str, str, str],
) -> None:
    mechanism, password, salt, iterations, first, nonce, server_first, final, server_final = conversation
    credentials = derive(mechanism, "user", password, b64decode(salt), iterations)
    exchange = Exchange(ClientFirst(first.encode()), credentials, nonce)
    assert exchange.server_first == server_first
    assert exchange.finish(final.encode()) == server_final.encode()


def test_the_conversation_of_rfc_5802() -> None:
    salt, iterations, first, nonce, server_first, final, server_final = RFC_5802
    credentials = _undigested_sha_1("pencil", b64decode(salt), iterations)
    exchange = Exchange(ClientFirst(first.encode()), credentials, nonce)
    assert exchange.server_first == server_first
    assert exchange.finish(final.encode()) == server_final.encode()


def _undigested_sha_1(password: str, salt: bytes, iterations: int) -> Credentials:
    import hashlib
    import hmac

    salted = hashlib.pbkdf2_hmac("sha1", password.encode(), salt, iterations)
    stored = hashlib.sha1(hmac.digest(salted, b"Client Key", "sha1")).digest()
    return Credentials(SHA_1, salt, iterations, stored, hmac.digest(salted, b"Server Key", "sha1"))


def test_a_digested_password_gives_the_same_credentials() -> None:
    salt = bytes(range(16))
    assert derived_from_digest(password_digest("u", "p"), salt) == derive(SHA_1, "u", "p", salt)


@pytest.mark.parametrize(("typed", "stored"), [("I\u00adX", "IX"), ("\u2168", "IX"), ("\u00aa", "a")])
def test_passwords_are_prepared_for_sha_256(typed: str, stored: str) -> None:
    salt = bytes(28)
    assert derive(SHA_256, "u", typed, salt) == derive(SHA_256, "u", stored, salt)


def test_names_of_users_are_unescaped_and_not_prepared() -> None:
    assert ClientFirst(b"n,,n=a=2Cb=3Dc,r=x").user == "a,b=c"
    assert ClientFirst("n,,n=\u2168,r=x".encode()).user == "\u2168"


@pytest.mark.parametrize(
    "message",
    ["", "n,,", "n,,n=user", "n,,r=x,n=user", "p=tls-unique,,n=user,r=x", "n,a=other,n=user,r=x", "n,,n=a=b,r=x",
     "n,,n=user,r=", "x,,n=user,r=x", "n,,n=user,r=x,", "n,," + "n=u,r=" + "x" * 20_000],
)  # fmt: skip
def test_what_is_no_first_message_fails(message: str) -> None:
    with pytest.raises(CommandError) as failed:
        ClientFirst(message.encode())
    assert failed.value.code == 18


def test_a_first_message_that_is_no_text_fails() -> None:
    with pytest.raises(CommandError):
        ClientFirst(b"n,,n=\xff,r=x")


@pytest.mark.parametrize(
    "final",
    [
        "",
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        "c=eSws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "c=biws,r=rOprNGfwEbeRWgbNEkqO,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=AAAA",
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVA=",
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=*",
    ],
)
def test_what_proves_nothing_fails(final: str) -> None:
    mechanism, password, salt, iterations, first, nonce, *_ = RFC_7677
    credentials = derive(mechanism, "user", password, b64decode(salt), iterations)
    with pytest.raises(CommandError) as failed:
        Exchange(ClientFirst(first.encode()), credentials, nonce).finish(final.encode())
    assert failed.value.code == 18


def test_a_conversation_that_is_replayed_fails() -> None:
    mechanism, password, salt, iterations, first, _, _, final, _ = RFC_7677
    credentials = derive(mechanism, "user", password, b64decode(salt), iterations)
    again = Exchange(ClientFirst(first.encode()), credentials, "another nonce of the server's")
    with pytest.raises(CommandError):
        again.finish(final.encode())


def test_a_user_that_does_not_exist_has_always_the_same_salt() -> None:
    first, again = fake(SHA_256, "admin.nobody", b"secret"), fake(SHA_256, "admin.nobody", b"secret")
    assert first.salt == again.salt and len(first.salt) == 28 and first.iterations == 15_000
    assert fake(SHA_256, "admin.somebody", b"secret").salt != first.salt
    assert fake(SHA_256, "admin.nobody", b"other").salt != first.salt
    assert len(fake(SHA_1, "admin.nobody", b"secret").salt) == 16


def test_credentials_are_read_back_from_a_document() -> None:
    made = derive(SHA_256, "u", "p", bytes(28))
    assert Credentials.parsed(SHA_256, made.document) == made
    for broken in ({}, {**made.document, "storedKey": "AA=="}, {**made.document, "salt": 5}):
        assert Credentials.parsed(SHA_256, broken) is None


def test_passwords_that_saslprep_prohibits_are_refused() -> None:
    for password in ("\u0007", "\u0627\u0031", "\u0221", "\u00ad"):
        with pytest.raises(CommandError) as refused:
            derive(SHA_256, "u", password, bytes(28))
        assert refused.value.code == 2


def test_saslprep_is_that_of_the_drivers() -> None:
    from pymongo.saslprep import saslprep as of_the_driver

    for text in ("I\u00adX", "user", "USER", "\u00aa", "\u2168", "\u00a0x", "\u0627\u0628", "\u0041\u030a"):
        assert saslprep(text) == of_the_driver(text)
