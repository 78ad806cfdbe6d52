"""`--config`: what mongod's configuration file says is what its flags say."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.configuration import BadConfiguration, expanded
from headrace.cli.main import build_parser, main
from headrace.cli.serve import options_of

DEBIANS = """
# mongod.conf, as packages install it
storage:
  dbPath: /var/lib/mongodb
systemLog:
  destination: file
  logAppend: true
  path: /var/log/mongodb/mongod.log
net:
  port: 27018
  bindIp: 127.0.0.1
  unixDomainSocket: {filePermissions: 0770}
processManagement:
  timeZoneInfo: /usr/share/zoneinfo
#security:
replication:
  replSetName: rs1
  oplogSizeMB: 512
"""


def config_file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mongod.conf"
    path.write_text(text)
    return str(path)


def test_the_file_of_a_package_is_understood(tmp_path: Path) -> None:
    words = ["serve", "--config", config_file(tmp_path, DEBIANS), "--port", "27019"]
    options = options_of(build_parser().parse_args(expanded(words)), words)
    assert (options.port, options.replica_set, options.logappend) == (27019, "rs1", True)
    assert options.dbpath == Path("/var/lib/mongodb") and options.logpath == Path("/var/log/mongodb/mongod.log")
    assert options.oplog_bytes_max == 512 * 1024**2 and options.bind_ips == ("127.0.0.1",)
    assert options.unix_socket_mode == 0o770
    assert options.argv == ("headrace", *words)


def test_a_flag_of_the_command_line_goes_before_its_opposite_in_the_file(tmp_path: Path) -> None:
    path = config_file(tmp_path, "{security: {authorization: enabled}, net: {bindIpAll: true}}")
    words = ["serve", "--noauth", "--bind_ip", "127.0.0.1", "-f", path]
    assert expanded(words) == ["serve", "--noauth", "--bind_ip", "127.0.0.1"]


def test_a_parameter_of_the_command_line_leaves_the_others_of_the_file(tmp_path: Path) -> None:
    path = config_file(
        tmp_path, "setParameter: {authenticationMechanisms: SCRAM-SHA-256, enableLocalhostAuthBypass: 0}"
    )
    words = expanded(["serve", "-f", path, "--setParameter", "authenticationMechanisms=SCRAM-SHA-1,MONGODB-X509"])
    options = options_of(build_parser().parse_args(words), words)
    assert options.mechanisms == ("MONGODB-X509", "SCRAM-SHA-1") and not options.localhost_exception


def test_without_a_file_nothing_changes_and_an_empty_one_says_nothing(tmp_path: Path) -> None:
    assert expanded(["serve", "--port", "1"]) == ["serve", "--port", "1"]
    assert expanded(["serve", f"--config={config_file(tmp_path, '')}", "--quiet"]) == ["serve", "--quiet"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("net: {unixDomainSocket: {enabled: false}}", ["--nounixsocket"]),
        ("setParameter: {enableTestCommands: true}", ["--setParameter", "enableTestCommands=1"]),
        ("setParameter: {ttlMonitorSleepSecs: 1}", ["--setParameter", "ttlMonitorSleepSecs=1"]),
        (
            "setParameter: {authenticationMechanisms: MONGODB-X509, enableLocalhostAuthBypass: false}",
            [
                "--setParameter",
                "authenticationMechanisms=MONGODB-X509",
                "--setParameter",
                "enableLocalhostAuthBypass=0",
            ],
        ),
        ("systemLog: {quiet: false}", []),
        ("security: {authorization: disabled}", []),
        (
            'auditLog: {destination: file, format: JSON, path: audit.json, filter: \'{"atype": "logout"}\'}',
            [
                "--auditDestination",
                "file",
                "--auditFormat",
                "JSON",
                "--auditPath",
                "audit.json",
                "--auditFilter",
                '{"atype": "logout"}',
            ],
        ),
        ("security: {authorization: enabled}", ["--auth"]),
        ("storage: {engine: lmdb}", []),
    ],
)
def test_settings_that_are_no_flags_with_values(tmp_path: Path, text: str, words: list[str]) -> None:
    assert expanded(["serve", "-f", config_file(tmp_path, text)]) == ["serve", *words]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("storage: {engine: wiredTiger}", "storage.engine is not a setting"),
        ("sharding: {clusterRole: shardsvr}", "sharding.clusterRole is not a setting"),
        ("net: [1]", "net is not a setting"),
        ("storage: {dbPath: [a]}", "neither text nor a number"),
        ("- a", "has no settings"),
        ("a: b: c", "is not YAML"),
        ("\x00", "is not YAML"),
        ("&a [*a]", "has no settings"),
        ("net: &a {port: *a}", "refers to itself"),
    ],
)
def test_what_does_not_apply_is_refused_in_one_line(
    tmp_path: Path, text: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--config", config_file(tmp_path, text)])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and reason in error and "Traceback" not in error


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    for words in (
        ["serve", "--config", str(tmp_path / "none")],
        ["serve", "--config"],
        ["serve", "-f", "a", "-f", "b"],
    ):
        with pytest.raises(BadConfiguration):
            expanded(words)
