"""The suites of `make clients`: from where each comes, in which version, and how it is run against a server."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pymongo
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)  # fmt: skip

from tests.clients.go_suite import go_outcomes
from tests.clients.packages import installed, source_package
from tests.clients.python_suites import Selection, clean_environment, python_outcomes
from tests.node import node_modules

MOCKUPDB: Final = "1.8.1"
MONGOENGINE: Final = "0.29.3"
MONGOOSE: Final = "9.12.1"
MONGOSH: Final = "2.12.0"
MOTOR: Final = "3.7.1"
HERE: Final = Path(__file__).parent
USER, PASSWORD = "user", "password"
"""The users that pymongo's suite creates by itself."""


@dataclass(frozen=True, slots=True)
class Target:
    """The server that a suite is run against. `secure`: it has TLS, with pymongo's certificates, and `--auth`."""

    port: int
    secure: bool
    certificates: Path

    @property
    def uri(self) -> str:
        login = f"{USER}:{PASSWORD}@" if self.secure else ""
        tls = f"&authSource=admin&tls=true&tlsCAFile={self.certificates / 'ca.pem'}" if self.secure else ""
        return f"mongodb://{login}localhost:{self.port}/?replicaSet=rs{tls}"


@dataclass(frozen=True, slots=True)
class Suite:
    """`run`: gives what became of each test, from the server, the selection and a folder to write to.

    `passed`: how many tests pass at least, without and with TLS and users (0: not run so): one that skips itself shows
    nothing. `port`: the only one that it knows, 0 for any.
    """

    run: Callable[[Target, Selection, Path], Mapping[str, str]]
    passed: tuple[int, int]
    port: int = 0


def pymongo_package() -> Path:
    return source_package("pymongo", pymongo.version, ("test/", "pyproject.toml"))


def _pymongo(target: Target, selection: Selection, folder: Path, marks: str) -> Mapping[str, str]:
    certificates = target.certificates
    environ = {
        "DB_IP": "localhost", "DB_PORT": str(target.port), "CA_PEM": str(certificates / "ca.pem"),
        "CLIENT_PEM": str(certificates / "client.pem"),
    }  # fmt: skip
    return python_outcomes(pymongo_package(), ["-m", marks, "test"], selection, environ, folder)


def _motor(target: Target, selection: Selection, folder: Path) -> Mapping[str, str]:
    suite = source_package("motor", MOTOR, ("test/", "pyproject.toml"))
    environ = {
        "CERT_DIR": str(target.certificates), "DB_IP": "localhost", "DB_PORT": str(target.port),
        "MONGODB_URI": target.uri, "PYTHONPATH": str(installed("mockupdb", MOCKUPDB)),
    }  # fmt: skip
    if target.secure:
        environ |= {"DB_USER": USER, "DB_PASSWORD": PASSWORD}
    warnings = ["-o", "filterwarnings=default"]  # newer packages warn of what it uses
    chosen = [*warnings, "test/asyncio_tests", "--ignore=test/asyncio_tests/test_aiohttp_gridfs.py"]
    return python_outcomes(suite, chosen, selection, environ, folder)


def _mongoengine(target: Target, selection: Selection, folder: Path) -> Mapping[str, str]:
    """The source package has only the first files of its suite, and lacks `tests.utils`, which two of them import."""
    suite = source_package("mongoengine", MONGOENGINE, ("tests/",))
    files = [f"tests/test_{name}.py" for name in (
        "common", "connection", "datastructures", "dereference", "replicaset_connection", "signals",
    )]  # fmt: skip
    return python_outcomes(suite, files, selection, {}, folder)


def _go(target: Target, selection: Selection, folder: Path, package: str) -> Mapping[str, str]:
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    more = {"DOCKER_RUNNING": "1"}
    if target.secure:
        more |= {"AUTH": "auth", "SSL": "ssl"} | _go_keys(target.certificates, folder)
    return go_outcomes(package, pymongo_package(), selection, target.uri, folder, more)


def _go_keys(certificates: Path, folder: Path) -> dict[str, str]:
    """The client's certificate with its key in each form that the suite logs in with, by variable."""
    client = (certificates / "client.pem").read_bytes()
    key = load_pem_private_key(client, None)
    certificate = client[client.index(b"-----BEGIN CERTIFICATE-----") :]
    files = {"MONGO_GO_DRIVER_KEY_FILE": str(certificates / "client.pem")}
    for name, encryption in (("ENCRYPTED", BestAvailableEncryption(b"password")), ("UNENCRYPTED", NoEncryption())):
        file = folder / f"{name.lower()}.pem"
        file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption) + certificate)
        files[f"MONGO_GO_DRIVER_PKCS8_{name}_KEY_FILE"] = str(file)
    return files


def _mongoose(target: Target, selection: Selection, folder: Path) -> Mapping[str, str]:
    """Its package carries no tests, and neither does the Node driver's: `mongoose.js` is ours."""
    modules = node_modules("mongoose", MONGOOSE)
    line = ["node", str(HERE / "mongoose.js"), target.uri, str(HERE / "steps.js")]
    return _steps(line, {"NODE_PATH": str(modules)}, folder)


def _mongosh(target: Target, selection: Selection, folder: Path) -> Mapping[str, str]:
    program = node_modules("mongosh", MONGOSH) / ".bin" / "mongosh"
    scripts = [word for name in ("steps.js", "tutorials.js") for word in ("--file", str(HERE / name))]
    return _steps([str(program), "--quiet", "--norc", target.uri, *scripts], {"HOME": str(folder)}, folder)


def _steps(line: list[str], environ: dict[str, str], folder: Path) -> Mapping[str, str]:
    """The outcomes that a script prints in its last line; a failed step has its reason in `output.txt`."""
    run = subprocess.run(
        line, env=clean_environment() | environ, capture_output=True, text=True, timeout=300, check=False
    )
    (folder / "output.txt").write_text(run.stdout + run.stderr)
    assert run.returncode == 0, run.stdout + run.stderr
    outcomes: dict[str, str] = json.loads(run.stdout.strip().splitlines()[-1])
    return {name: outcome.partition(":")[0] for name, outcome in outcomes.items()}


SUITES: Final[Mapping[str, Suite]] = {
    "go integration": Suite(partial(_go, package="internal/integration"), (740, 745)),
    "go unified": Suite(partial(_go, package="internal/integration/unified"), (1600, 1600)),
    "mongoengine": Suite(_mongoengine, (141, 0), port=27017),
    "mongoose": Suite(_mongoose, (18, 18)),
    "mongosh": Suite(_mongosh, (36, 36)),
    "motor": Suite(_motor, (150, 100)),
    "pymongo": Suite(partial(_pymongo, marks="default or auth"), (3860, 3700)),
    "pymongo async": Suite(partial(_pymongo, marks="default_async"), (2970, 3000)),
}
