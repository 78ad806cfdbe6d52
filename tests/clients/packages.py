"""Suites of tests as their makers publish them: fetched once by pip or Go, and kept by version in the user's cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
GO_DRIVER: Final = "go.mongodb.org/mongo-driver/v2@v2.10.0"


def source_package(name: str, version: str, parts: tuple[str, ...]) -> Path:
    """The folder of a Python project's source package, with these files and folders only.

    `parts`: paths in the package, a folder with a slash at its end. The driver itself is left out, so that tests run
    with the installed one.
    """
    folder = CACHE / f"{name}-{version}"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            package = _downloaded(name, version, Path(temporary))
            unpacked = _unpacked(package, Path(temporary) / "unpacked", parts)
            if not folder.is_dir():  # another run may have been quicker
                unpacked.rename(folder)
    return folder


def installed(name: str, version: str) -> Path:
    """A folder for `PYTHONPATH` that has one package, without what it requires, which a suite wants besides."""
    folder = CACHE / f"{name}-{version}"
    if not folder.is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*pip, f"{name}=={version}"], check=True)
    return folder


def _downloaded(name: str, version: str, folder: Path) -> Path:
    """The source package, from the index that pip is set to. To know its metadata pip has it built, but nothing else,
    and without the C extensions."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name]
    environ = os.environ | {"NO_EXT": "1"}
    subprocess.run([*pip, "--dest", str(folder), f"{name}=={version}"], check=True, env=environ)
    return next(folder.glob(f"{name}-*.tar.gz"))


def _unpacked(package: Path, folder: Path, parts: tuple[str, ...]) -> Path:
    with tarfile.open(package) as archive:
        members = [member for member in archive.getmembers() if member.name.partition("/")[2].startswith(parts)]
        archive.extractall(folder, members, filter="data")
    return next(folder.iterdir())


def go_environment() -> dict[str, str]:
    """For `go`: its caches beside the others, and the module as it is published, without its workspace."""
    return os.environ | {
        "GOCACHE": str(CACHE / "go-build"), "GOMODCACHE": str(CACHE / "go"), "GOFLAGS": "-modcacherw", "GOWORK": "off",
    }  # fmt: skip


def go_driver() -> Path:
    """The folder of the Go driver's module, which carries its tests."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        (Path(temporary) / "go.mod").write_text("module suites\n")
        fetched = subprocess.run(
            ["go", "mod", "download", "-json", GO_DRIVER],
            cwd=temporary, env=go_environment(), check=True, capture_output=True, text=True,
        )  # fmt: skip
    return Path(json.loads(fetched.stdout)["Dir"])


def go_tests(module: Path, package: str) -> Path:
    """The compiled tests of a package of the module, made once: compiling takes a minute."""
    program = CACHE / "go-tests" / module.name / f"{package.replace('/', '-')}.test"
    if not program.is_file():
        program.parent.mkdir(parents=True, exist_ok=True)
        line = ["go", "test", "-c", "-o", str(program), f"./{package}"]
        subprocess.run(line, cwd=module, env=go_environment(), check=True)
    return program
