"""The flags of TLS, and the certificates that `headrace tls dev` makes."""

from __future__ import annotations

import stat
from pathlib import Path

import pymongo
import pytest

import headrace
from headrace.cli import main as cli
from headrace.cli.serve import options_of
from headrace.cli.tls_flags import PASSWORD_VARIABLE, BadOptions
from headrace.dispatch.options import ServerOptions, TlsOptions
from headrace.server.tls.context import subject_text

FILES = ["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", "/x/server.pem", "--tlsCAFile", "/x/ca.pem"]


def options(*words: str) -> ServerOptions:
    return options_of(cli.build_parser().parse_args(["serve", *words]), ["serve", *words])


def test_the_flags_are_mongods() -> None:
    chosen = options(
        *FILES, "--tlsCRLFile", "/x/list.pem", "--tlsAllowConnectionsWithoutCertificates",
        "--tlsAllowInvalidCertificates", "--tlsDisabledProtocols", "TLS1_0, TLS1_2",
        "--setParameter", "ocspEnabled=false",
    )  # fmt: skip
    assert chosen.tls == TlsOptions(
        Path("/x/server.pem"), "requireTLS", None, Path("/x/ca.pem"), Path("/x/list.pem"), True, True,
        frozenset({"TLS1_0", "TLS1_2"}),
    )  # fmt: skip
    assert options().tls is None and options("--tlsMode", "disabled").tls is None


def test_the_password_comes_from_a_flag_or_the_environment_and_is_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "canary-1")
    for words, expected in (
        ([], "canary-1"),
        (["--tlsCertificateKeyFilePassword", "canary-2"], "canary-2"),
        (["--tlsCertificateKeyFilePassword=canary-3"], "canary-3"),
    ):
        chosen = options(*FILES, *words)
        assert chosen.tls is not None and chosen.tls.certificate_key_password == expected
        assert "canary" not in repr(chosen) and "canary" not in str(chosen.argv)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--tlsMode", "requireTLS"], "--tlsMode needs --tlsCertificateKeyFile"),
        (["--tlsCAFile", "x"], "--tlsCAFile needs --tlsMode"),
        (["--tlsMode", "disabled", *FILES[2:]], "needs --tlsMode"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadOptions, match=reason):
        options(*words)
    assert cli.main(["serve", *words]) == 2 and reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--setParameter", "ocspEnabled=true"], "no OCSP responder"),
        (["--tlsMode", "always"], "'always' is none of"),
        (["--tlsDisabledProtocols", "TLS2"], "Unrecognized disabledProtocols 'TLS2'"),
    ],
)
def test_what_is_not_there_is_refused(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", *words])
    assert reason in capsys.readouterr().err


def test_certificates_that_cannot_be_used_end_the_command_with_the_status_of_bad_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", *FILES, "--dbpath", str(tmp_path / "data"), "--port", "0", "--nounixsocket"]) == 2
    assert "cannot read /x/server.pem" in capsys.readouterr().err


def test_certificates_for_development_work_and_are_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tls"
    assert cli.main(["tls", "dev", str(folder)]) == 0
    serve, mongosh = capsys.readouterr().out.splitlines()
    words = serve.split()[2:]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    with headrace.Server(tls=options(*words).tls) as server:
        uri = f"{server.uri}&tlsCertificateKeyFile={mongosh.split()[-1]}"
        with pymongo.MongoClient(uri) as client:
            assert client.admin.command("ping")["ok"] == 1.0
    assert cli.main(["tls", "dev", str(folder)]) == 1
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ([[("organizationName", "Example")], [("commonName", "app")]], "CN=app,O=Example"),
        (
            [[("countryName", ",+")], [("stateOrProvinceName", '"\\<')], [("localityName", " >")],
             [("organizationName", "; ")], [("organizationalUnitName", "Escape")], [("commonName", "Test")]],
            'CN=Test,OU=Escape,O=\\;\\ ,L=\\ \\>,ST=\\"\\\\\\<,C=\\,\\+',
        ),
        ([[("commonName", "#1 Калоян\n")]], "CN=\\#1 Калоян\\0A"),
        ([[("organizationName", "a"), ("organizationalUnitName", "b")], [("commonName", "c d")]], "CN=c d,OU=b+O=a"),
        (
            [[("domainComponent", "com")], [("emailAddress", "a@b")], [("1.2.3.4", "x")]],
            "1.2.3.4=x,emailAddress=a@b,DC=com",
        ),
        ([], ""),
    ],
)  # fmt: skip
def test_a_subject_is_the_text_that_mongodb_makes_of_it(name: list[list[tuple[str, str]]], text: str) -> None:
    assert subject_text(name) == text
