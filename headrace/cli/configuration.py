"""mongod's configuration file (`--config`): YAML whose settings stand for flags of the command line.

Rule: an unknown setting is an error, as on mongod, and so is a setting whose flag is refused. A flag on the command
line overrides the same setting in the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

SETTINGS: Final = {
    "auditLog.destination": "--auditDestination",
    "auditLog.filter": "--auditFilter",
    "auditLog.format": "--auditFormat",
    "auditLog.path": "--auditPath",
    "headrace.backup": "--backup",
    "headrace.backupKeyFile": "--backupKeyFile",
    "headrace.backupRetain": "--backupRetain",
    "headrace.backupSnapshotEvery": "--backupSnapshotEvery",
    "headrace.metricsAddress": "--metricsAddress",
    "headrace.metricsPort": "--metricsPort",
    "headrace.readers": "--readers",
    "net.bindIp": "--bind_ip",
    "net.bindIpAll": "--bind_ip_all",
    "net.ipv6": "--ipv6",
    "net.port": "--port",
    "net.tls.CAFile": "--tlsCAFile",
    "net.tls.CRLFile": "--tlsCRLFile",
    "net.tls.allowConnectionsWithoutCertificates": "--tlsAllowConnectionsWithoutCertificates",
    "net.tls.allowInvalidCertificates": "--tlsAllowInvalidCertificates",
    "net.tls.certificateKeyFile": "--tlsCertificateKeyFile",
    "net.tls.certificateKeyFilePassword": "--tlsCertificateKeyFilePassword",
    "net.tls.disabledProtocols": "--tlsDisabledProtocols",
    "net.tls.mode": "--tlsMode",
    "net.unixDomainSocket.filePermissions": "--filePermissions",
    "net.unixDomainSocket.pathPrefix": "--unixSocketPrefix",
    "operationProfiling.slowOpSampleRate": "--slowOpSampleRate",
    "operationProfiling.slowOpThresholdMs": "--slowms",
    "processManagement.fork": "--fork",
    "processManagement.pidFilePath": "--pidfilepath",
    "replication.oplogSizeMB": "--oplogSize",
    "replication.replSetName": "--replSet",
    "security.authorization": "--auth",
    "storage.dbPath": "--dbpath",
    "storage.oplogMinRetentionHours": "--oplogMinRetentionHours",
    "systemLog.logAppend": "--logappend",
    "systemLog.logRotate": "--logRotate",
    "systemLog.path": "--logpath",
    "systemLog.quiet": "--quiet",
}
"""The flag that each setting stands for, by the setting's path. mongod has no settings under `headrace`."""
_WITHOUT_FLAG: Final = (
    ("net.unixDomainSocket.enabled", True), ("processManagement.timeZoneInfo", None),
    ("security.authorization", "disabled"), ("storage.engine", "lmdb"), ("systemLog.destination", "file"),
)  # fmt: skip
"""Settings that need no flag, because they hold anyway. None stands for any value."""
_LEVELS: Final = {False: "0", "off": "0", "slowOp": "1", "all": "2"}
"""The profiler's level by `operationProfiling.mode`; YAML reads `off` as false."""
_PARAMETERS: Final = frozenset({
    "setParameter.authenticationMechanisms",
    "setParameter.enableLocalhostAuthBypass",
    "setParameter.enableTestCommands",
    "setParameter.ttlMonitorSleepSecs",
})  # fmt: skip
"""Settings that each stand for a `--setParameter`. The last one of a name counts, so the command line overrides."""
_EXCLUDED_BY: Final = {"--bind_ip": "--bind_ip_all", "--bind_ip_all": "--bind_ip", "--noauth": "--auth"}
_BYTES_MAX: Final = 1 << 20


class BadConfiguration(Exception):
    """The error of a file that cannot be read, is not YAML, or has a setting that does not apply."""


def expanded(words: Sequence[str]) -> list[str]:
    """Return a command line with the flags of the file in place of `--config FILE` or `-f FILE`.

    The file's flags come first, so that the command line overrides them. Raises `BadConfiguration`.
    """
    rest: list[str] = []
    files: list[str] = []
    items = iter(words)
    for word in items:
        name, sign, value = word.partition("=")
        if name not in ("--config", "-f"):
            rest.append(word)
            continue
        file = value if sign else next(items, None)
        if file is None:
            raise BadConfiguration(f"{word} needs the name of a file")
        files.append(file)
    if not files:
        return rest
    if len(files) > 1:
        raise BadConfiguration("--config can be given once")
    given = {word.partition("=")[0] for word in rest}
    given |= {_EXCLUDED_BY[flag] for flag in given & _EXCLUDED_BY.keys()}
    flags = [word for flag, words_ in _flags(Path(files[0])) if flag not in given for word in words_]
    command, *others = rest
    return [command, *flags, *others]


def _flags(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag of a file with its words on the command line."""
    try:
        settings = list(_settings("", _document(path)))
    except RecursionError:
        raise BadConfiguration(f"{path} refers to itself") from None
    for name, value in settings:
        if (name, value) in _WITHOUT_FLAG or (name, None) in _WITHOUT_FLAG:
            continue
        if name == "net.unixDomainSocket.enabled" and value is False:
            yield "--nounixsocket", ["--nounixsocket"]
        elif name in _PARAMETERS:
            shown = int(value) if type(value) is bool else _text(path, name, value)
            yield f"{name}=", ["--setParameter", f"{name.partition('.')[2]}={shown}"]
        elif name == "operationProfiling.mode":
            yield "--profile", ["--profile", _level(path, value)]
        elif name not in SETTINGS:
            raise BadConfiguration(f"{path}: {name} is not a setting of Headrace")
        elif value is True or (name, value) == ("security.authorization", "enabled"):
            yield SETTINGS[name], [SETTINGS[name]]
        elif value is not False:
            yield SETTINGS[name], [SETTINGS[name], _text(path, name, value)]


def _level(path: Path, mode: Any) -> str:
    level = _LEVELS.get(mode)
    if level is None:
        raise BadConfiguration(f"{path}: operationProfiling.mode is off, slowOp or all, not {mode}")
    return level


def _text(path: Path, name: str, value: Any) -> str:
    if name == "net.unixDomainSocket.filePermissions" and type(value) is int:
        return format(value, "o")  # YAML reads 0700 as an octal number
    if type(value) not in (str, int, float):
        raise BadConfiguration(f"{path}: {name} is neither text nor a number")
    return str(value)


def _settings(prefix: str, settings: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of each setting, from nested settings too."""
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if type(value) is dict:
            yield from _settings(f"{name}.", value)
        else:
            yield name, value


def _document(path: Path) -> dict[Any, Any]:
    import yaml

    try:
        with path.open("rb") as file:
            document = yaml.safe_load(file.read(_BYTES_MAX))
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfiguration(f"--config {path} cannot be read: {error}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise BadConfiguration(f"--config {path} is not YAML: {error}") from None
    if document is None:
        return {}
    if type(document) is not dict:
        raise BadConfiguration(f"--config {path} has no settings")
    return document
