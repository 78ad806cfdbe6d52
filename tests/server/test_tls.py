"""TLS on the server's sockets: who gets in, what a mode admits, changed certificates, attacks on the handshake."""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pymongo
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from pymongo.monitoring import ServerHeartbeatListener

import headrace
from headrace import limits
from headrace.cli.tls_dev import DAYS, Authority, make_certificates
from headrace.dispatch.options import TlsOptions
from headrace.server.tls.context import TlsError, new_context
from tests.server.raw import RawClient
from tests.waiting import until

SUBJECT = "CN=client,OU=Development,O=Headrace"
LOCALHOST = [x509.DNSName("localhost")]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder)
    return folder


def options(folder: Path, **changed: Any) -> TlsOptions:
    return TlsOptions(**{"certificate_key_file": folder / "server.pem", "ca_file": folder / "ca.pem", **changed})


def client_context(folder: Path, *, certificate: bool = True) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    if certificate:
        context.load_cert_chain(folder / "client.pem")
    return context


def clients_of(server: headrace.Server) -> list[Any]:
    return [peer.client.tls for peer in server._running.peers]


def messages(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


def write_private(path: Path, content: bytes) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path


def test_a_client_with_a_certificate_gets_in_and_its_subject_is_known(certificates: Path) -> None:
    with (
        headrace.Server(tls=options(certificates)) as server,
        RawClient(server.address, tls=client_context(certificates)) as client,
    ):
        assert client.ask({"ping": 1})["ok"] == 1.0
        (session,) = clients_of(server)
        assert (session.version, session.subject) == ("TLSv1.3", SUBJECT)
        status = client.ask({"serverStatus": 1}, "admin")
        assert status["transportSecurity"]["1.3"] == 1
        shown = status["security"]
        assert shown["SSLServerSubjectName"] == "CN=localhost,OU=Development servers,O=Headrace"
        assert shown["SSLServerHasCertificateAuthority"] is True
        assert int(shown["SSLServerCertificateExpirationDate"]) > datetime.now(UTC).timestamp() * 1000
        shown = client.ask({"getCmdLineOpts": 1}, "admin")["parsed"]["net"]["tls"]
        assert shown["mode"] == "requireTLS" and shown["CAFile"] == str(certificates / "ca.pem")


def test_a_driver_connects_by_the_servers_uri(certificates: Path) -> None:
    with headrace.Server(tls=certificates) as server, pymongo.MongoClient(server.uri) as client:
        client.t.c.insert_one({"_id": 1})
        with client.t.c.watch() as stream:
            client.t.c.insert_one({"_id": 2})
            assert next(stream)["fullDocument"] == {"_id": 2}
        assert {session.subject for session in clients_of(server)} == {None}


def test_a_client_without_a_certificate_stays_out_unless_allowed(
    certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bare = client_context(certificates, certificate=False)
    with headrace.Server(tls=options(certificates)) as server:
        with pytest.raises((ssl.SSLError, OSError)), RawClient(server.address, tls=bare) as client:
            client.ask({"ping": 1})  # with TLS 1.3 the client learns of it when it reads
        until(lambda: messages(caplog, "the TLS handshake of 127.0.0.1"))
    with (
        headrace.Server(tls=options(certificates, allow_connections_without_certificates=True)) as server,
        RawClient(server.address, tls=bare) as client,
    ):
        assert client.ask({"ping": 1})["ok"] == 1.0


def test_a_certificate_of_another_authority_is_refused_or_not_asked_for(certificates: Path, tmp_path: Path) -> None:
    foreign = write_private(
        tmp_path / "foreign.pem", Authority(datetime.now(UTC)).issue(["Headrace", "Development", "client"], [])
    )
    context = client_context(certificates, certificate=False)
    context.load_cert_chain(foreign)
    for allowed in ({}, {"allow_connections_without_certificates": True}):
        with (
            headrace.Server(tls=options(certificates, **allowed)) as server,
            pytest.raises((ssl.SSLError, OSError)),
            RawClient(server.address, tls=context) as client,
        ):
            client.ask({"ping": 1})
    with (
        headrace.Server(tls=options(certificates, allow_invalid_certificates=True)) as server,
        RawClient(server.address, tls=context) as client,
    ):
        assert client.ask({"ping": 1})["ok"] == 1.0
        assert clients_of(server)[0].subject is None  # so nobody can log in by it


def test_a_revoked_certificate_is_refused(tmp_path: Path) -> None:
    authority = Authority(datetime.now(UTC) - timedelta(minutes=5))
    write_private(tmp_path / "ca.pem", authority.certificate_pem)
    write_private(tmp_path / "server.pem", authority.issue(["a", "b", "server"], LOCALHOST))
    mine = authority.issue(["a", "b", "client"], [])
    write_private(tmp_path / "client.pem", mine)
    for revoked in (False, True):
        number = x509.load_pem_x509_certificate(mine).serial_number if revoked else 1
        entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(datetime.now(UTC)).build()
        issuer = x509.load_pem_x509_certificate(authority.certificate_pem).subject
        builder = x509.CertificateRevocationListBuilder().issuer_name(issuer).add_revoked_certificate(entry)
        builder = builder.last_update(datetime.now(UTC) - timedelta(minutes=1))
        signed = builder.next_update(datetime.now(UTC) + timedelta(days=1)).sign(authority._key, hashes.SHA256())
        (tmp_path / "list.pem").write_bytes(signed.public_bytes(encoding=x509_pem()))
        with headrace.Server(tls=options(tmp_path, revocation_file=tmp_path / "list.pem")) as server:
            raises = pytest.raises((ssl.SSLError, OSError)) if revoked else contextlib.nullcontext()
            with raises, RawClient(server.address, tls=client_context(tmp_path)) as client:
                assert client.ask({"ping": 1})["ok"] == 1.0


def x509_pem() -> Any:
    from cryptography.hazmat.primitives.serialization import Encoding

    return Encoding.PEM


@pytest.mark.parametrize("mode", ["allowTLS", "preferTLS"])
def test_one_port_takes_both_plain_and_tls(mode: str, certificates: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        headrace.Server(tls=options(certificates, mode=mode)) as server,
        RawClient(server.address) as plain,
        RawClient(server.address, tls=client_context(certificates)) as client,
    ):
        assert plain.ask({"ping": 1})["ok"] == client.ask({"ping": 1})["ok"] == 1.0
        assert {session and session.subject for session in clients_of(server)} == {None, SUBJECT}
    assert len(messages(caplog, "is not using SSL")) == (1 if mode == "preferTLS" else 0)


def test_a_plain_client_on_a_tls_port_is_cut_off_with_one_line_however_often_it_tries(
    certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with headrace.Server(tls=options(certificates)) as server:
        for _ in range(20):
            with RawClient(server.address) as client, contextlib.suppress(OSError):
                client.send({"ping": 1})
                assert client.is_cut_off()
    assert len(messages(caplog, "only allow SSL connections")) == 1


def test_a_client_that_leaves_without_a_byte_is_no_line_of_the_log(
    certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with headrace.Server(tls=options(certificates)) as server:
        for _ in range(20):
            RawClient(server.address).socket.close()
        with RawClient(server.address, tls=client_context(certificates)) as client:
            assert client.ask({"ping": 1})["ok"] == 1.0
    assert not messages(caplog, "cut off") and not messages(caplog, "handshake")


def test_a_tls_client_on_a_plain_port_is_cut_off_with_one_line_however_often_it_tries(
    certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with headrace.Server() as server:
        for _ in range(20):
            with pytest.raises((ssl.SSLError, OSError)):
                RawClient(server.address, tls=client_context(certificates))
    (line,) = messages(caplog, "SSL handshake received but server is started without SSL support")
    assert line.startswith("127.0.0.1:")


def test_a_unix_socket_takes_plain_clients_in_any_mode(certificates: Path, tmp_path: Path) -> None:
    with headrace.Server(tls=options(certificates), unix_socket_prefix=tmp_path):
        (path,) = tmp_path.glob("*.sock")
        with pymongo.MongoClient(f"mongodb://{str(path).replace('/', '%2F')}") as client:
            assert client.admin.command("ping")["ok"] == 1.0


@pytest.mark.parametrize(
    ("disabled", "spoken", "works"),
    [
        ((), ssl.TLSVersion.TLSv1_2, True), ((), ssl.TLSVersion.TLSv1_3, True),
        (("TLS1_2",), ssl.TLSVersion.TLSv1_2, False), (("TLS1_2",), ssl.TLSVersion.TLSv1_3, True),
        (("TLS1_3",), ssl.TLSVersion.TLSv1_3, False), (("TLS1_3", "TLS1_0"), ssl.TLSVersion.TLSv1_2, True),
    ],
)  # fmt: skip
def test_a_disabled_protocol_is_not_spoken(
    certificates: Path, disabled: tuple[str, ...], spoken: ssl.TLSVersion, works: bool
) -> None:
    context = client_context(certificates)
    context.minimum_version = context.maximum_version = spoken
    with headrace.Server(tls=options(certificates, disabled_protocols=frozenset(disabled))) as server:
        raises = contextlib.nullcontext() if works else pytest.raises((ssl.SSLError, OSError))
        with raises, RawClient(server.address, tls=context) as client:
            assert client.ask({"ping": 1})["ok"] == 1.0


def test_nothing_older_than_1_2_is_spoken(certificates: Path) -> None:
    assert new_context(options(certificates)).minimum_version == ssl.TLSVersion.TLSv1_2


def test_long_messages_pass_in_both_directions(certificates: Path) -> None:
    texts = ["x" * size for size in (16_383, 16_384, 262_143, 262_145, 1_000_000, 15_000_000)]
    with headrace.Server(tls=certificates) as server, pymongo.MongoClient(server.uri) as client:
        client.t.c.insert_many({"_id": at, "text": text} for at, text in enumerate(texts))
        assert [document["text"] for document in client.t.c.find().sort("_id")] == texts


def test_a_client_that_does_not_read_holds_up_nobody_and_gets_everything_at_last(certificates: Path) -> None:
    context = client_context(certificates)
    with (
        headrace.Server(tls=options(certificates)) as server,
        RawClient(server.address, tls=context) as slow,
        RawClient(server.address, tls=context) as other,
    ):
        slow.ask({"insert": "c", "documents": [{"_id": 1, "text": "x" * 4_000_000}]})
        for _ in range(8):
            slow.send({"find": "c", "filter": {"_id": 1}})
        for _ in range(50):
            assert other.ask({"ping": 1})["ok"] == 1.0
        for _ in range(8):
            assert len(slow.receive()[1]["cursor"]["firstBatch"][0]["text"]) == 4_000_000


def test_bytes_that_come_one_at_a_time_make_the_same_session(certificates: Path) -> None:
    """A proxy between client and server sends each byte alone, so that handshake and records are cut everywhere."""
    with headrace.Server(tls=options(certificates)) as server, socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def forward() -> None:
            host, port = server.address.split(":")
            front, _ = listening.accept()
            with front, socket.create_connection((host, int(port))) as back:
                back.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=backward, args=(back, front), daemon=True).start()
                while data := front.recv(65536):
                    for at in range(len(data)):
                        back.sendall(data[at : at + 1])

        def backward(back: socket.socket, front: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := back.recv(65536):
                    front.sendall(data)

        thread = threading.Thread(target=forward, daemon=True)
        thread.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with RawClient(address, tls=client_context(certificates)) as client:
            assert client.ask({"ping": 1, "comment": "x" * 500})["ok"] == 1.0
        thread.join(timeout=20)


# Certificates that change.


def serial_number(address: str, context: ssl.SSLContext) -> str:
    with RawClient(address, tls=context) as client:
        certificate = client.socket.getpeercert()  # type: ignore[attr-defined]
        assert client.ask({"ping": 1})["ok"] == 1.0
        return str(certificate["serialNumber"])


def test_certificates_are_read_again_and_nobody_is_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(datetime.now(UTC) - timedelta(minutes=5))
    write_private(tmp_path / "ca.pem", authority.certificate_pem)
    write_private(tmp_path / "client.pem", authority.issue(["a", "b", "client"], []))
    write_private(tmp_path / "server.pem", authority.issue(["a", "b", "server"], LOCALHOST))
    context = client_context(tmp_path)
    rotate = {"rotateCertificates": 1, "message": "now"}
    caplog.set_level(logging.INFO)
    with headrace.Server(tls=options(tmp_path)) as server, RawClient(server.address, tls=context) as client:
        first = serial_number(server.address, context)
        (tmp_path / "server.pem").write_bytes(authority.issue(["a", "b", "server"], LOCALHOST))
        assert serial_number(server.address, context) == first
        assert client.ask(rotate, "admin")["ok"] == 1.0
        second = serial_number(server.address, context)
        assert second != first and messages(caplog, "Successfully rotated the certificates: now")
        for broken in (b"", b"nothing", authority.certificate_pem):
            (tmp_path / "server.pem").write_bytes(broken)
            failure = client.ask(rotate, "admin")
            assert failure["code"] == 140 and failure["codeName"] == "InvalidSSLConfiguration"
            assert serial_number(server.address, context) == second
        assert len(messages(caplog, "those from before stay in force")) == 3
    with headrace.Server() as server, RawClient(server.address) as client:
        assert client.ask({"rotateCertificates": 1}, "admin")["code"] == 140


@pytest.mark.process
def test_sighup_reads_the_certificates_again(tmp_path: Path) -> None:
    authority = Authority(datetime.now(UTC) - timedelta(minutes=5))
    write_private(tmp_path / "ca.pem", authority.certificate_pem)
    write_private(tmp_path / "client.pem", authority.issue(["a", "b", "client"], []))
    key = write_private(tmp_path / "server.pem", authority.issue(["a", "b", "server"], LOCALHOST, "secret"))
    log = tmp_path / "log"
    words = [
        sys.executable,
        "-m",
        "headrace",
        "serve",
        "--port",
        "0",
        "--nounixsocket",
        "--dbpath",
        str(tmp_path / "d"),
    ]
    words += ["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", str(key), "--tlsCAFile", str(tmp_path / "ca.pem")]
    words += ["--tlsCertificateKeyFilePassword", "secret"]
    with log.open("w") as errors, subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        assert process.stdout is not None
        try:
            address = re.findall(r"(127\.0\.0\.1:\d+)", process.stdout.readline())[0]
            context = client_context(tmp_path)
            with RawClient(address, tls=context) as client:
                first = serial_number(address, context)
                for content, line in ((b"broken", "stay in force"), (None, "Successfully rotated")):
                    key.write_bytes(content or authority.issue(["a", "b", "server"], LOCALHOST, "secret"))
                    process.send_signal(signal.SIGHUP)
                    until(lambda line=line: line in log.read_text())
                assert client.ask({"ping": 1})["ok"] == 1.0 and serial_number(address, context) != first
                assert "secret" not in str(client.ask({"getCmdLineOpts": 1}, "admin"))
            assert "secret" not in log.read_text()
        finally:
            process.kill()


# What cannot be used.


@pytest.mark.parametrize("begins_in_days", [-398, 1])
def test_a_certificate_that_clients_refuse_for_its_dates_is_refused(
    tmp_path: Path, begins_in_days: int, caplog: pytest.LogCaptureFixture
) -> None:
    write_private(tmp_path / "ca.pem", Authority(datetime.now(UTC)).certificate_pem)
    wrong = Authority(datetime.now(UTC) + timedelta(days=begins_in_days)).issue(["a", "b", "server"], LOCALHOST)
    right = Authority(datetime.now(UTC) - timedelta(minutes=5)).issue(["a", "b", "server"], LOCALHOST)
    key = write_private(tmp_path / "server.pem", wrong)
    with pytest.raises(TlsError, match="expired or not yet valid"):
        headrace.Server(tls=options(tmp_path)).start()
    key.write_bytes(right)
    allowing = options(tmp_path, allow_connections_without_certificates=True, mode="allowTLS")
    with headrace.Server(tls=allowing) as server, RawClient(server.address) as client:
        key.write_bytes(wrong)
        assert client.ask({"rotateCertificates": 1}, "admin")["code"] == 140
    assert not messages(caplog, "expires in")


def test_a_certificate_that_expires_soon_is_a_startup_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(datetime.now(UTC) - timedelta(days=DAYS - 10))
    write_private(tmp_path / "server.pem", authority.issue(["a", "b", "server"], LOCALHOST))
    allowing = options(tmp_path, ca_file=None, allow_connections_without_certificates=True)
    with headrace.Server(tls=allowing):
        assert messages(caplog, "expires in 9 days")


def test_a_client_whose_certificate_has_expired_stays_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_certificates(tmp_path / "valid")
    expired = Authority(datetime.now(UTC) - timedelta(days=DAYS + 1))
    write_private(tmp_path / "ca.pem", (tmp_path / "valid" / "ca.pem").read_bytes() + expired.certificate_pem)
    write_private(tmp_path / "server.pem", (tmp_path / "valid" / "server.pem").read_bytes())
    write_private(tmp_path / "client.pem", expired.issue(["a", "b", "client"], []))
    with headrace.Server(tls=options(tmp_path)) as server:
        context = client_context(tmp_path)
        with pytest.raises((ssl.SSLError, OSError)), RawClient(server.address, tls=context) as client:
            client.ask({"ping": 1})
        until(lambda: messages(caplog, "certificate has expired"))


@pytest.mark.parametrize("password", [None, "wrong", "x" * 1025])
def test_a_key_without_its_password_is_refused(tmp_path: Path, password: str | None) -> None:
    authority = Authority(datetime.now(UTC))
    write_private(tmp_path / "ca.pem", authority.certificate_pem)
    write_private(tmp_path / "server.pem", authority.issue(["a", "b", "server"], LOCALHOST, "right"))
    new_context(options(tmp_path, certificate_key_password="right"))
    with pytest.raises(TlsError, match="password"):
        headrace.Server(tls=options(tmp_path, certificate_key_password=password)).start()


def test_files_that_cannot_be_used_are_named(certificates: Path, tmp_path: Path) -> None:
    empty = write_private(tmp_path / "empty.pem", b"")
    public = write_private(tmp_path / "open.pem", (certificates / "server.pem").read_bytes())
    public.chmod(0o644)
    other = write_private(
        tmp_path / "other.pem",
        (certificates / "ca.pem").read_bytes()
        + (certificates / "client.pem").read_bytes().partition(b"-----\n-----")[2],
    )
    for changed, reason in (
        ({"certificate_key_file": tmp_path / "none"}, "cannot read .*none: No such file"),
        ({"certificate_key_file": empty}, "empty.pem cannot be used"),
        ({"certificate_key_file": other}, "other.pem cannot be used"),
        ({"certificate_key_file": public}, "permissions on .*open.pem are too open"),
        ({"ca_file": tmp_path / "none"}, "cannot read .*none: No such file"),
        ({"ca_file": empty}, "empty.pem holds nothing"),
        ({"revocation_file": empty}, "empty.pem holds nothing"),
        ({"ca_file": None}, "--tlsMode needs --tlsCAFile"),
        ({"disabled_protocols": frozenset({"TLS1_2", "TLS1_3"})}, "leaves no protocol"),
    ):
        with pytest.raises(TlsError, match=reason):
            headrace.Server(tls=options(certificates, **changed)).start()


# Attacks.


def test_a_handshake_that_takes_too_long_is_cut_off(
    certificates: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "HANDSHAKE_SECONDS", 0.05)
    for beginning in (b"", b"\x16\x03\x01", b"\x16\x03\x01\x02\x00" + b"\x01" * 100):
        with headrace.Server(tls=options(certificates)) as server, RawClient(server.address) as client:
            client.socket.sendall(beginning)
            assert client.is_cut_off()
    assert len(messages(caplog, "no TLS handshake within 0.05 s")) == 3


@pytest.mark.long
def test_thousands_of_half_open_handshakes_hold_up_neither_clients_nor_newcomers(certificates: Path) -> None:
    """Each sends a whole ClientHello, which costs the server a signature, and then nothing."""
    context = client_context(certificates)
    with (
        headrace.Server(tls=options(certificates)) as server,
        RawClient(server.address, tls=context) as client,
        contextlib.ExitStack() as stack,
    ):
        host, port = server.address.split(":")
        longest, hello = 0.0, client_hello()
        for number in range(1500):
            half = stack.enter_context(socket.create_connection((host, int(port))))
            half.sendall(hello)
            if number % 50 == 0:
                began = time.perf_counter()
                assert client.ask({"ping": 1})["ok"] == 1.0
                longest = max(longest, time.perf_counter() - began)
        with RawClient(server.address, tls=context) as newcomer:
            assert newcomer.ask({"ping": 1})["ok"] == 1.0
        assert longest < limits.HANDSHAKE_SECONDS / 2


def client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


def test_a_handshake_of_endless_length_is_cut_off(certificates: Path) -> None:
    with headrace.Server(tls=options(certificates)) as server, RawClient(server.address) as client:
        with contextlib.suppress(OSError):
            for _ in range(200):
                client.socket.sendall(b"\x16\x03\x01\x40\x00" + b"\x01\xff\xff\xff" + bytes(0x4000 - 4))
        with contextlib.suppress(ConnectionError):
            while client.socket.recv(65536):  # an alert, then the end
                pass


@pytest.mark.parametrize("garbage", [b"\x16" + b"x" * 100, b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 64, b"\xff"])
def test_garbage_costs_its_sender_the_connection_only(certificates: Path, garbage: bytes) -> None:
    with (
        headrace.Server(tls=options(certificates)) as server,
        RawClient(server.address, tls=client_context(certificates)) as other,
        RawClient(server.address) as client,
    ):
        client.socket.sendall(garbage)
        assert client.is_cut_off() and other.ask({"ping": 1})["ok"] == 1.0


def test_a_record_that_was_tampered_with_costs_its_sender_the_connection(certificates: Path) -> None:
    with headrace.Server(tls=options(certificates)) as server:
        client = RawClient(server.address, tls=client_context(certificates))
        assert client.ask({"ping": 1})["ok"] == 1.0
        raw = socket.socket(fileno=client.socket.detach())
        with raw:
            raw.settimeout(20)
            raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
            with contextlib.suppress(ConnectionResetError):
                while raw.recv(65536):
                    pass


def test_a_server_ends_while_handshakes_are_under_way(certificates: Path) -> None:
    server = headrace.Server(tls=options(certificates)).start()
    clients = [RawClient(server.address) for _ in range(20)]
    hello = client_hello()
    for client in clients:
        client.socket.sendall(hello)
    server.close()
    for client in clients:
        client.socket.close()


class Failures(ServerHeartbeatListener):
    """Why a driver could not connect."""

    def __init__(self) -> None:
        self.errors: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def started(self, event: Any) -> None:
        """Nothing: so begins each attempt."""

    def succeeded(self, event: Any) -> None:
        self.errors.put(None)

    def failed(self, event: Any) -> None:
        self.errors.put(event.reply)


def test_a_driver_that_does_not_know_the_authority_does_not_connect(certificates: Path) -> None:
    failures = Failures()
    with headrace.Server(tls=certificates) as server:
        uri = f"mongodb://{server.address}/?tls=true"
        with pymongo.MongoClient(uri, event_listeners=[failures]):
            assert "CERTIFICATE_VERIFY" in str(failures.errors.get(timeout=60))


# X.509 users.


def test_a_user_logs_in_by_the_subject_of_its_certificate(certificates: Path) -> None:
    """The driver sends the login in its hello (speculatively) or as a command of its own; both name the certificate."""
    with headrace.Server(tls=options(certificates)) as server:
        uri = f"{server.uri}&tlsCertificateKeyFile={certificates / 'client.pem'}"
        with pymongo.MongoClient(uri) as client:
            client["$external"].command("createUser", SUBJECT, roles=[{"role": "readWrite", "db": "t"}])
        with pymongo.MongoClient(uri, authMechanism="MONGODB-X509") as client:
            status = client.admin.command("connectionStatus")["authInfo"]
            assert status["authenticatedUsers"] == [{"user": SUBJECT, "db": "$external"}]
        with RawClient(server.address, tls=client_context(certificates)) as raw:
            login = {"authenticate": 1, "mechanism": "MONGODB-X509"}
            assert raw.ask({**login, "user": "CN=other"}, "$external")["code"] == 18
            assert raw.ask({**login, "user": SUBJECT}, "$external")["user"] == SUBJECT


def test_nobody_logs_in_by_a_certificate_that_was_not_checked(certificates: Path) -> None:
    for changed in ({"allow_invalid_certificates": True}, {"allow_connections_without_certificates": True}):
        with headrace.Server(tls=options(certificates, **changed)) as server:
            bare = client_context(certificates, certificate="allow_invalid_certificates" in changed)
            with RawClient(server.address, tls=bare) as client:
                client.ask({"createUser": SUBJECT, "roles": ["root"]}, "$external")
                login = {"authenticate": 1, "mechanism": "MONGODB-X509", "user": SUBJECT}
                assert client.ask(login, "$external")["code"] == 18
