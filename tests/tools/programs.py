"""MongoDB's command line tools, unmodified, for tests: found in an archive beside the checkout, and unpacked once.

HEADRACE_TOOLS names the folder of the archive, which is not part of the repository. Where there is none, or the machine
is another than that it was built for, the tests are skipped.
"""

from __future__ import annotations

import os
import platform
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

_NAMED: Final = os.environ.get("HEADRACE_TOOLS")
FOLDER: Final = Path(_NAMED) if _NAMED else Path(__file__).resolve().parents[3] / "shared" / "tools"
RAW: Final = CodecOptions(document_class=RawBSONDocument)
_TIMEOUT_SECONDS: Final = 120


def unpacked() -> Path:
    """The folder with the tools; skips the test where they are not there."""
    machine = f"{platform.system()}-{platform.machine()}".lower()
    archive = next(iter(sorted(FOLDER.glob(f"mongo-tools-*-{machine}.tar.xz"))), None) if FOLDER.is_dir() else None
    if archive is None:
        pytest.skip(f"no mongo-tools for {machine} in {FOLDER}")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
    folder = cache / archive.name.removesuffix(".tar.xz")
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as temporary, tarfile.open(archive) as packed:
            made = Path(temporary) / "tools"
            packed.extractall(made, filter="data")
            if not folder.is_dir():  # another run may have been quicker
                made.rename(folder)
    return folder


def run(name: str, uri: str, *words: str | Path, stdin: str | None = None) -> str:
    """The standard output of a tool that succeeds; `uri`: the server it is for, empty: none."""
    program = next(unpacked().rglob(name))
    line = [str(program), *(("--uri", uri) if uri else ()), *map(str, words)]
    done = subprocess.run(
        line, capture_output=True, text=True, input=stdin, timeout=_TIMEOUT_SECONDS, check=False
    )  # fmt: skip
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stdout


def state(client: MongoClient[Any], database: str = "shop") -> dict[str, Any]:
    """All collections and views of a database with their options, indexes and documents, as bytes by `_id`."""
    found: dict[str, Any] = {}
    for item in client[database].list_collections():
        name, options = item["name"], item["options"]
        if name == "system.views":
            continue
        if item["type"] == "view":
            found[name] = options
            continue
        # Their options come in any order: mongorestore sends them from a map of Go.
        indexes = {index["name"]: dict(index) for index in client[database][name].list_indexes()}
        documents = client[database].get_collection(name, codec_options=RAW).find()
        found[name] = options, indexes, {item["_id"]: item.raw for item in documents}
    return found
