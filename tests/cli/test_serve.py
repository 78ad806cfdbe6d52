"""The command line: mongod's flags to options, the refused ones, the background, the places."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.cli import main as cli
from headrace.cli.arguments import data_directory
from headrace.cli.background import pid_file
from headrace.cli.serve import REFUSED_FLAGS, options_of
from headrace.dispatch.options import ServerOptions


def options(*words: str) -> ServerOptions:
    return options_of(cli.build_parser().parse_args(["serve", *words]), ["serve", *words])


def test_a_tutorials_line_works(tmp_path: Path) -> None:
    chosen = options(
        "--dbpath", str(tmp_path), "--port", "27018", "--bind_ip", "127.0.0.1,::1", "--replSet", "rs1",
        "--oplogSize", "128", "--oplogMinRetentionHours", "1.5", "--logpath", "x.log", "--quiet",
    )  # fmt: skip
    assert chosen.dbpath == tmp_path and chosen.port == 27018 and chosen.bind_ips == ("127.0.0.1", "::1")
    assert chosen.replica_set == "rs1" and chosen.oplog_bytes_max == 128 * 1024**2 and chosen.oplog_hours == 1.5
    assert chosen.logpath == Path("x.log").absolute() and chosen.quiet and not chosen.fork


def test_the_defaults_are_loopback_and_a_directory_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    chosen = options()
    assert chosen.bind_ips == ("127.0.0.1",) and chosen.port == 27017 and chosen.oplog
    assert chosen.dbpath == Path("/somewhere/headrace")
    assert chosen.oplog_bytes_max is None and chosen.oplog_hours == 24.0 and chosen.oplog_entries_max is None
    assert not chosen.enable_test_commands


def test_a_relative_path_in_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert data_directory() == Path.home() / ".local" / "share" / "headrace"
    monkeypatch.setattr("sys.platform", "darwin")
    assert data_directory() == Path.home() / "Library" / "Application Support" / "headrace"


def test_all_addresses_are_the_four_zeros_and_with_ipv6_both() -> None:
    assert options("--bind_ip_all").bind_ips == ("0.0.0.0",)
    assert options("--bind_ip_all", "--ipv6").bind_ips == ("0.0.0.0", "::")


def test_the_surface_of_the_oplog_can_be_off_and_the_sockets_too() -> None:
    chosen = options("--no-oplog", "--nounixsocket")
    assert not chosen.oplog and chosen.unix_socket_prefix is None
    assert options("--unixSocketPrefix", "/run/x").unix_socket_prefix == Path("/run/x")


@pytest.mark.parametrize("words", [["--enable-test-commands"], ["--setParameter", "enableTestCommands=1"]])
def test_test_commands_are_enabled_by_either_spelling(words: list[str]) -> None:
    assert options(*words).enable_test_commands


def test_the_rounds_of_ttl_indexes_are_set_at_the_start() -> None:
    assert options("--setParameter", "ttlMonitorSleepSecs=1").ttl_seconds == 1
    assert options().ttl_seconds == 60


@pytest.mark.parametrize("flag", sorted(REFUSED_FLAGS))
def test_a_flag_that_would_mean_something_else_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", flag])
    assert ended.value.code == 2 and REFUSED_FLAGS[flag] in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--port", "70000"], ["--oplogSize", "0"], ["--oplogMinRetentionHours", "-1"], ["--oplogEntriesMax", "0"],
        ["--setParameter", "x=1"], ["--setParameter", "ttlMonitorSleepSecs=0"],
        ["--bind_ip", "a", "--bind_ip_all"], ["--nosuch"], ["--por", "1"],
    ],
)  # fmt: skip
def test_a_bad_flag_is_an_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", *words])
    assert ended.value.code == 2 and capsys.readouterr().err


def test_the_background_needs_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--fork"]) == 1
    assert "--logpath" in capsys.readouterr().err


def test_the_version_names_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out.startswith("headrace ")


def test_the_pid_file_is_there_as_long_as_the_server(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with pid_file(path):
        assert path.read_text() == f"{os.getpid()}\n"
    assert not path.exists()
