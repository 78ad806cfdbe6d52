"""Logins, driven message by message."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary

from headrace import limits
from headrace.auth.scram import SHA_1, SHA_256, derive, prepared
from headrace.dispatch.request import Request
from headrace.dispatch.wait import Wait
from headrace.testing.driven import DrivenServer
from headrace.values.bson import decode

BROKEN_RESTRICTIONS: list[Any] = [
    "x", 5, {"clientSource": "127.0.0.1"}, ["x"], [{"clientSource": 5}], [{"clientSource": [1]}],
]  # fmt: skip
OF_MONGODB = {
    "_id": "admin.root", "userId": Binary(bytes(16), 4), "user": "root", "db": "admin",
    "credentials": {
        "SCRAM-SHA-1": {
            "iterationCount": 10000, "salt": "UwfWWqy8Do2wjiY/hSzT+g==", "storedKey": "UvrWJ2hbxsgwSR3vUiK/je5wnks=",
            "serverKey": "Te5/9eQAw9TYQlSNBEEC8PB7fh0=",
        },
        "SCRAM-SHA-256": {
            "iterationCount": 15000, "salt": "+uf4DVvouUvB/mhKlWAyheU5brY1Wak2Zalr9Q==",
            "storedKey": "wgHg2tHe2R4pTV6wml2h65ZjecIDZA4NyPVurX7puFM=",
            "serverKey": "F+r+rls/npaWauo+e9zmUqWXG1fy3B1UJJutFIgu4OA=",
        },
    },
    "roles": [{"role": "readWrite", "db": "admin"}, {"role": "dbAdmin", "db": "admin"}],
}  # fmt: skip
"""A user as a MongoDB has stored it, from a published note; its password is `pwd`."""


@pytest.fixture(params=[True, False], ids=["oplog", "standalone"])
def server(request: pytest.FixtureRequest) -> Iterator[DrivenServer]:
    with DrivenServer(oplog=request.param) as driven:
        driven.must("admin", {"createUser": "a,b=c", "pwd": "p\u00adw", "roles": []})
        yield driven


def run(server: DrivenServer, db: str, body: dict[str, Any]) -> dict[str, Any]:
    """The reply; that of a login which fails comes behind a delay."""
    request: Request = server.request(db, body)
    command = server.engine.command(request)
    answer = server.engine.run_read(command, request)
    if isinstance(answer, Wait):
        assert answer.wait_ms > 0
        answer = server.engine.run_read(command, request)
    assert isinstance(answer, bytes)
    return decode(answer)


def first_message(user: str) -> bytes:
    return f"n,,n={user.replace('=', '=3D').replace(',', '=2C')},r=client".encode()


def proof(mechanism: str, user: str, password: str, server_first: bytes) -> bytes:
    """The client's last message, as a driver computes it."""
    name = {SHA_1: "sha1", SHA_256: "sha256"}[mechanism]
    fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
    salted = hashlib.pbkdf2_hmac(name, prepared(mechanism, user, password), b64decode(fields["s"]), int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", name)
    without = f"c=biws,r={fields['r']}"
    signed = b",".join([first_message(user)[3:], server_first, without.encode()])
    signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
    return f"{without},p={b64encode(bytes(a ^ b for a, b in zip(client_key, signature))).decode()}".encode()


def log_in(
    server: DrivenServer, user: str = "a,b=c", password: str = "pw", mechanism: str = SHA_256, **options: bool
) -> dict[str, Any]:
    start = {"saslStart": 1, "mechanism": mechanism, "payload": first_message(user), "options": options}
    begun = run(server, "admin", start)
    last = proof(mechanism, user, password, begun["payload"])
    return run(server, "admin", {"saslContinue": 1, "conversationId": 1, "payload": last})


def who(server: DrivenServer) -> list[dict[str, str]]:
    users: list[dict[str, str]] = run(server, "admin", {"connectionStatus": 1})["authInfo"]["authenticatedUsers"]
    return users


def test_a_login_with_each_mechanism(server: DrivenServer) -> None:
    for mechanism, password in ((SHA_1, "p\u00adw"), (SHA_256, "pw")):
        done = log_in(server, password=password, mechanism=mechanism, skipEmptyExchange=True)
        assert done["done"] is True and done["payload"].startswith(b"v=")
        assert who(server) == [{"user": "a,b=c", "db": "admin"}]
        run(server, "other", {"logout": 1})
        assert who(server) != []
        run(server, "admin", {"logout": 1})
        assert who(server) == []


@pytest.mark.parametrize("mechanism", [SHA_1, SHA_256])
def test_a_user_that_mongodb_has_stored_logs_in(server: DrivenServer, mechanism: str) -> None:
    server.must("admin", {"insert": "system.users", "documents": [OF_MONGODB]})
    assert log_in(server, "root", "pwd", mechanism)["ok"] == 1.0
    assert who(server) == [{"user": "root", "db": "admin"}]
    shown = server.must("admin", {"usersInfo": "root", "showCredentials": True})["users"][0]
    assert shown == {**OF_MONGODB, "mechanisms": [SHA_1, SHA_256]}


def test_a_client_may_send_an_empty_message_at_the_end(server: DrivenServer) -> None:
    assert log_in(server)["done"] is False
    done = run(server, "admin", {"saslContinue": 1, "conversationId": 1, "payload": b""})
    assert (done["done"], done["payload"]) == (True, b"")
    assert run(server, "admin", {"saslContinue": 1, "conversationId": 1, "payload": b""})["code"] == 17


def test_a_login_fails_in_the_same_way_whoever_it_is(server: DrivenServer) -> None:
    wrong = log_in(server, password="other")
    nobody = log_in(server, user="nobody")
    for failed in (wrong, nobody):
        assert (failed["code"], failed["codeName"], failed["errmsg"]) == (
            18, "AuthenticationFailed", "Authentication failed.",
        )  # fmt: skip
    assert who(server) == []
    status = server.must("admin", {"serverStatus": 1})["security"]["authentication"]["mechanisms"]
    assert status[SHA_256]["authenticate"] == {"received": 2, "successful": 0}


def test_a_proof_is_good_for_one_conversation(server: DrivenServer) -> None:
    start = {"saslStart": 1, "mechanism": SHA_256, "payload": first_message("a,b=c")}
    last = proof(SHA_256, "a,b=c", "pw", run(server, "admin", start)["payload"])
    run(server, "admin", start)
    replayed = run(server, "admin", {"saslContinue": 1, "conversationId": 1, "payload": last})
    assert replayed["code"] == 18
    again = run(server, "admin", {"saslContinue": 1, "conversationId": 1, "payload": last})
    assert again["code"] == 17


@pytest.mark.parametrize(
    ("db", "body", "code"),
    [
        ("admin", {"saslStart": 1, "mechanism": "PLAIN", "payload": b""}, 334),
        ("$external", {"saslStart": 1, "mechanism": SHA_256, "payload": b"n,,n=u,r=x"}, 334),
        ("admin", {"saslStart": 1, "mechanism": SHA_256, "payload": "n,,n=u,r=x"}, 18),
        ("admin", {"saslStart": 1, "mechanism": SHA_256, "payload": b"p=tls-unique,,n=u,r=x"}, 18),
        ("admin", {"saslContinue": 1, "conversationId": 1, "payload": b""}, 17),
        ("$external", {"authenticate": 1, "mechanism": "MONGODB-X509"}, 18),
        ("admin", {"authenticate": 1, "mechanism": "MONGODB-CR"}, 334),
    ],
)
def test_what_is_no_login(server: DrivenServer, db: str, body: dict[str, Any], code: int) -> None:
    assert run(server, db, body)["code"] == code


def test_a_hello_begins_a_login_and_names_the_mechanisms(server: DrivenServer) -> None:
    asked = {"saslStart": 1, "mechanism": SHA_256, "payload": first_message("a,b=c"), "db": "admin"}
    reply = run(server, "admin", {"hello": 1, "saslSupportedMechs": "admin.a,b=c", "speculativeAuthenticate": asked})
    assert reply["saslSupportedMechs"] == [SHA_1, SHA_256]
    last = proof(SHA_256, "a,b=c", "pw", reply["speculativeAuthenticate"]["payload"])
    run(server, "admin", {"saslContinue": 1, "conversationId": 1, "payload": last})
    assert who(server) == [{"user": "a,b=c", "db": "admin"}]


def test_a_hello_does_not_say_whether_a_user_exists(server: DrivenServer) -> None:
    asked = {"saslStart": 1, "mechanism": SHA_256, "payload": first_message("nobody"), "db": "admin"}
    hello = {"hello": 1, "saslSupportedMechs": "admin.nobody", "speculativeAuthenticate": asked}
    first, second = run(server, "admin", hello), run(server, "admin", hello)
    assert first["saslSupportedMechs"] == [SHA_1, SHA_256]
    salts = [reply["speculativeAuthenticate"]["payload"].split(b",")[1] for reply in (first, second)]
    assert salts[0] == salts[1]
    broken = {**asked, "payload": b"nonsense"}
    assert "speculativeAuthenticate" not in run(server, "admin", {"hello": 1, "speculativeAuthenticate": broken})


def test_a_hello_begins_no_login_by_a_mechanism_that_the_user_has_not(server: DrivenServer) -> None:
    server.must("admin", {"createUser": "old", "pwd": "pw", "roles": [], "mechanisms": [SHA_1]})
    asked = {"saslStart": 1, "mechanism": SHA_256, "payload": first_message("old"), "db": "admin"}
    reply = run(server, "admin", {"hello": 1, "saslSupportedMechs": "admin.old", "speculativeAuthenticate": asked})
    assert reply["saslSupportedMechs"] == [SHA_1]
    assert "speculativeAuthenticate" not in reply


def test_a_connection_is_one_user_at_a_time(server: DrivenServer) -> None:
    server.must("admin", {"createUser": "other", "pwd": "pw", "roles": []})
    log_in(server, skipEmptyExchange=True)
    assert log_in(server, skipEmptyExchange=True)["ok"] == 1.0
    assert log_in(server, user="other")["code"] == 5626701


def test_a_user_that_is_dropped_is_out_at_once(server: DrivenServer) -> None:
    log_in(server, skipEmptyExchange=True)
    server.must("admin", {"dropUser": "a,b=c"})
    assert who(server) == []
    server.must("admin", {"createUser": "a,b=c", "pwd": "pw", "roles": []})
    assert who(server) == []
    log_in(server, skipEmptyExchange=True)
    server.must("admin", {"delete": "system.users", "deletes": [{"q": {}, "limit": 0}]})
    assert who(server) == []


def test_a_restriction_of_addresses_is_met_or_the_login_fails(server: DrivenServer) -> None:
    for source, code in (("10.0.0.0/8", 18), ("127.0.0.0/8", None)):
        server.must("admin", {"updateUser": "a,b=c", "authenticationRestrictions": [{"clientSource": [source]}]})
        assert log_in(server, skipEmptyExchange=True).get("code") == code
    server.must("admin", {"updateUser": "a,b=c", "authenticationRestrictions": [{"serverAddress": ["10.0.0.1"]}]})
    assert who(server) == []


def test_restrictions_of_a_role_count_and_a_change_of_them_puts_its_users_out(server: DrivenServer) -> None:
    near: list[dict[str, Any]] = [{"clientSource": ["127.0.0.0/8"], "serverAddress": ["127.0.0.1"]}]
    far: list[dict[str, Any]] = [{"clientSource": ["127.0.0.0/8"], "serverAddress": ["10.0.0.1"]}]
    create: dict[str, Any] = {"createRole": "inner", "privileges": [], "roles": [], "authenticationRestrictions": near}
    server.must("admin", create)
    server.must("admin", {"createRole": "outer", "privileges": [], "roles": ["inner"]})
    server.must("admin", {"grantRolesToUser": "a,b=c", "roles": ["outer"]})
    assert log_in(server)["ok"] == 1.0 and who(server)
    server.must("admin", {"updateRole": "inner", "authenticationRestrictions": far})
    assert not who(server) and log_in(server)["code"] == 18
    server.must("admin", {"updateRole": "inner", "authenticationRestrictions": near})
    assert log_in(server)["ok"] == 1.0
    server.must("admin", {"updateUser": "a,b=c", "authenticationRestrictions": far})  # both must be met
    assert not who(server) and log_in(server)["code"] == 18


def test_a_certificate_logs_its_subject_in(server: DrivenServer) -> None:
    server.must("$external", {"createUser": "CN=ann", "roles": []})
    client = server.request("admin", {"ping": 1}).client
    client.certificate_subject = "CN=ann"
    asked = {"authenticate": 1, "mechanism": "MONGODB-X509", "user": "CN=bob"}
    assert run(server, "$external", asked)["code"] == 18
    done = run(server, "$external", {**asked, "user": "CN=ann"})
    assert (done["dbname"], done["user"]) == ("$external", "CN=ann")
    assert who(server) == [{"user": "CN=ann", "db": "$external"}]
    run(server, "$external", {"logout": 1})
    speculative = {"authenticate": 1, "mechanism": "MONGODB-X509", "db": "$external"}
    assert run(server, "admin", {"hello": 1, "speculativeAuthenticate": speculative})["speculativeAuthenticate"]
    assert who(server) != []


def test_listeners_are_called_for_each_login(server: DrivenServer) -> None:
    events: list[tuple[str, dict[str, Any], int]] = []
    server.engine.access.listeners.append(lambda event: events.append((event[0], event[2], event[3])))
    log_in(server, password="wrong")
    log_in(server, skipEmptyExchange=True)
    run(server, "admin", {"logout": 1})
    name = {"user": "a,b=c", "db": "admin"}
    login = {**name, "mechanism": SHA_256}
    assert events[:2] == [("authenticate", login, 18), ("authenticate", login, 0)]
    details = {"reason": "Explicit logout from admin", "initialUsers": [name], "updatedUsers": []}
    assert events[2:] == [("logout", details, 0)]


def test_a_login_derives_no_keys(server: DrivenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes milliseconds: the client does it, and the server compares."""
    start = {"saslStart": 1, "mechanism": SHA_256, "payload": first_message("a,b=c")}
    last = proof(SHA_256, "a,b=c", "pw", run(server, "admin", start)["payload"])
    derived: list[Any] = []
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", lambda *arguments: derived.append(arguments))
    assert "payload" in run(server, "admin", {"saslContinue": 1, "conversationId": 1, "payload": last})
    assert who(server)
    assert run(server, "admin", {**start, "payload": first_message("nobody")})["done"] is False
    assert not derived


@pytest.mark.parametrize("conversation", [0, 2, -1, 1 << 40])
def test_another_conversation_s_number_ends_the_login(server: DrivenServer, conversation: int) -> None:
    start = {"saslStart": 1, "mechanism": SHA_256, "payload": first_message("a,b=c")}
    last = proof(SHA_256, "a,b=c", "pw", run(server, "admin", start)["payload"])
    answers = [
        run(server, "admin", {"saslContinue": 1, "conversationId": number, "payload": last})["code"]
        for number in (conversation, 1)
    ]
    assert answers == [17, 17] and who(server) == []


def test_what_a_login_sends_is_bounded(server: DrivenServer) -> None:
    long = b"n,,n=" + b"a" * limits.SASL_BYTES_MAX + b",r=client"
    assert run(server, "admin", {"saslStart": 1, "mechanism": SHA_256, "payload": long})["code"] == 18
    run(server, "admin", {"saslStart": 1, "mechanism": SHA_256, "payload": first_message("a,b=c")})
    assert run(server, "admin", {"saslContinue": 1, "conversationId": 1, "payload": long})["code"] == 18
    assert server.client.conversation is None


def test_a_hello_logs_nobody_in_by_itself(server: DrivenServer) -> None:
    """Neither a proof nor another's conversation may be in it, and what it begins replaces what was begun."""
    asked = {"saslStart": 1, "mechanism": SHA_256, "payload": first_message("a,b=c"), "db": "admin"}
    begun = run(server, "admin", {"hello": 1, "speculativeAuthenticate": asked})["speculativeAuthenticate"]
    last = proof(SHA_256, "a,b=c", "pw", begun["payload"])
    finishing = {"saslContinue": 1, "conversationId": 1, "payload": last}
    assert "speculativeAuthenticate" not in run(server, "admin", {"hello": 1, "speculativeAuthenticate": finishing})
    for nonsense in ({"saslStart": 1}, {**asked, "payload": 1}, {**asked, "mechanism": ["x"]}):
        run(server, "admin", {"hello": 1, "speculativeAuthenticate": nonsense})
    run(server, "admin", {"hello": 1, "speculativeAuthenticate": {**asked, "payload": first_message("eve")}})
    assert run(server, "admin", finishing)["code"] == 18
    assert who(server) == []


def test_credentials_have_the_iterations_of_mongodb(server: DrivenServer) -> None:
    assert derive(SHA_256, "u", "p", bytes(28)).iterations == 15_000


@pytest.mark.parametrize(
    "change",
    [
        [{"updateUser": "a,b=c", "pwd": "another"}],
        [{"dropUser": "a,b=c"}, {"createUser": "a,b=c", "pwd": "p\u00adw", "roles": ["root"]}],
        [{"updateUser": "a,b=c", "mechanisms": [SHA_1]}],
    ],
    ids=["another password", "another user", "another mechanism"],
)
def test_a_login_that_had_begun_ends_where_the_user_has_changed(
    server: DrivenServer, change: list[dict[str, Any]]
) -> None:
    begun = run(server, "admin", {"saslStart": 1, "mechanism": SHA_256, "payload": first_message("a,b=c")})
    last = proof(SHA_256, "a,b=c", "pw", begun["payload"])
    client = server.client
    for body in change:
        server.must("admin", body)
    server.client = client
    assert run(server, "admin", {"saslContinue": 1, "conversationId": 1, "payload": last})["code"] == 18
    assert not who(server)


@pytest.mark.parametrize("restrictions", BROKEN_RESTRICTIONS, ids=str)
def test_a_restriction_that_is_none_keeps_its_user_out(server: DrivenServer, restrictions: Any) -> None:
    broken = {"$set": {"authenticationRestrictions": restrictions}}
    server.must("admin", {"update": "system.users", "updates": [{"q": {}, "u": broken}]})
    assert log_in(server)["code"] == 18


def test_a_stranger_makes_no_long_lines(server: DrivenServer) -> None:
    events: list[str] = []
    server.engine.access.listeners.append(lambda event: events.append(str(event[2])))
    long = "x" * 1_000_000
    start = {"saslStart": 1, "mechanism": SHA_256, "payload": first_message("a")}
    replies = [
        run(server, db, {**start, "mechanism": mechanism})
        for db in (long, "$external")
        for mechanism in (SHA_256, long)
    ]
    run(server, long, {"saslContinue": 1, "conversationId": 1, "payload": b""})
    server.engine.set_authorization(True)
    for body in ({"find": long}, {"insert": "c"}, {"getMore": 1, "collection": long}):
        assert server.run(long, body)["code"] == 13  # type: ignore[index]
    assert len(events) >= 6 and max(map(len, events)) < 3_000
    assert max(len(reply.get("errmsg", "")) for reply in replies) < 1_000


def test_a_mechanism_that_is_off_logs_nobody_in() -> None:
    with DrivenServer(mechanisms=(SHA_256,)) as server:
        server.must("admin", {"createUser": "a,b=c", "pwd": "pw", "roles": []})
        server.must("$external", {"createUser": "CN=ann", "roles": []})
        for user in ("a,b=c", "nobody"):
            start = {"saslStart": 1, "mechanism": SHA_1, "payload": first_message(user)}
            assert run(server, "admin", start)["code"] == 334
            hello = run(server, "admin", {"hello": 1, "saslSupportedMechs": f"admin.{user}"})
            assert hello["saslSupportedMechs"] == [SHA_256]
        server.client.certificate_subject = "CN=ann"
        x509 = {"mechanism": "MONGODB-X509", "db": "$external"}
        assert run(server, "$external", {"authenticate": 1, "mechanism": "MONGODB-X509"})["code"] == 334
        hello = run(server, "admin", {"hello": 1, "speculativeAuthenticate": {"authenticate": 1, **x509}})
        assert "speculativeAuthenticate" not in hello and not who(server)
        assert log_in(server)["ok"] == 1.0
