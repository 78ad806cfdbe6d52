"""A data file with flipped bits anywhere in it, before it is opened or while a server has it open.

LMDB trusts its pages, so that the process may end with a signal; what must never happen is a document that is not as
it was stored, or an error that the server does not expect (code 1, with a traceback in its log). Each seed runs in a
forked process. A scan may miss documents where LMDB's own fields are damaged (`incomplete`), as docs/data-directory.md
says.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.dispatch.wait import Wait
from headrace.server.failures import read_error, write_error
from headrace.store.data_file import UnusableDirectory
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

COUNT = 600
PAGE_BYTES = 4096
SECONDS_MAX = 30
SIGNALS = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV}
REPLIED, REFUSED, INCOMPLETE, WRONG = 0, 1, 2, 99


def document(number: int) -> dict[str, Any]:
    return {
        "_id": number,
        "a": number,
        "text": f"{number} " * (3 + number % 60),
        "b": bytes([number % 251]) * 40,
    }


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("intact")
    with DrivenServer(path, clock=FakeClock(), map_bytes=1 << 26) as server:
        unique = {"key": {"a": 1}, "name": "a_1", "unique": True}
        server.must("t", {"createIndexes": "c", "indexes": [unique]})
        for start in range(0, COUNT, 50):
            server.must("t", {"insert": "c", "documents": [document(n) for n in range(start, start + 50)]})
        server.must("t", {"delete": "c", "deletes": [{"q": {"_id": {"$lt": 20}}, "limit": 0}]})
    return path


def flip(path: Path, chance: Random) -> None:
    """Flip some bits near each other in one page or more, half of them at its head, where LMDB's own fields are."""
    with (path / "data.mdb").open("r+b") as file:
        pages = os.fstat(file.fileno()).st_size // PAGE_BYTES
        for _ in range(chance.choice((1, 4, 16))):
            page, at = chance.randrange(pages), chance.choice((chance.randrange(64), chance.randrange(PAGE_BYTES)))
            for _ in range(chance.choice((1, 1, 2, 8))):
                offset = page * PAGE_BYTES + min(at + chance.randrange(4), PAGE_BYTES - 1)
                file.seek(offset)
                byte = file.read(1)[0] ^ (1 << chance.randrange(8))
                file.seek(offset)
                file.write(bytes([byte]))


def shown(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """The documents of a reply; it must be one that MongoDB could give."""
    if reply["ok"] != 1 or reply.get("writeErrors"):
        code = reply["writeErrors"][0]["code"] if reply.get("writeErrors") else reply["code"]
        assert code in (301, 11000), reply
        return []
    return list(reply.get("cursor", {}).get("firstBatch", []))


def asked(server: DrivenServer, body: dict[str, Any], error_of: Callable[[BaseException], Any]) -> list[dict[str, Any]]:
    """Return the server's answer, through the code that turns exceptions into errors."""
    try:
        reply = server.run("t", body)
    except Exception as error:
        answer = error_of(error)
        assert answer.code != 1, error
        return []
    assert not isinstance(reply, Wait)
    return shown(reply)


def is_complete(server: DrivenServer) -> bool:
    """Whether a scan, if it raises nothing, has all documents, each once."""
    returned = asked(server, {"find": "c", "batchSize": COUNT}, read_error)
    return not returned or [item["_id"] for item in returned] == list(range(20, COUNT))


def exercise(server: DrivenServer, chance: Random) -> None:
    """Read everything in all ways, then write; raises where a document is not as it was stored."""
    reads: list[dict[str, Any]] = [
        {"find": "c", "batchSize": COUNT}, {"find": "c", "sort": {"_id": 1}, "batchSize": COUNT},
        {"find": "c", "filter": {"a": {"$gt": 300}}, "sort": {"$natural": -1}, "batchSize": COUNT},
        *({"find": "c", "filter": {"_id": chance.randrange(COUNT)}} for _ in range(20)),
    ]  # fmt: skip
    for body in reads:
        for returned in asked(server, body, read_error):
            assert returned == document(returned["_id"]) or "changed" in returned, returned
    asked(server, {"count": "c"}, read_error)
    asked(server, {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}, read_error)
    for _ in range(20):
        number = chance.randrange(2 * COUNT)
        change = {"q": {"_id": number}, "u": {"$set": {"changed": True}}}
        asked(server, {"update": "c", "updates": [change]}, write_error)
        asked(server, {"insert": "c", "documents": [{**document(COUNT + number), "changed": 1}]}, write_error)
        asked(server, {"delete": "c", "deletes": [{"q": {"_id": number}, "limit": 1}]}, write_error)
    for returned in asked(server, reads[0], read_error):
        assert "changed" in returned or returned == document(returned["_id"]), returned


def life(path: Path, seed: int) -> int:
    """Open the directory and use it: what became of it."""
    chance = Random(seed)
    while_open = chance.random() < 0.4
    if not while_open:
        flip(path, chance)
    try:
        server = DrivenServer(path, clock=FakeClock(), map_bytes=1 << 26)
    except UnusableDirectory as error:
        assert "\n" not in str(error)
        return REFUSED
    if while_open:
        asked(server, {"find": "c", "sort": {"_id": 1}, "batchSize": COUNT}, read_error)
        flip(path, chance)
    status = REPLIED if is_complete(server) else INCOMPLETE
    exercise(server, chance)
    return status


def outcome(path: Path, seed: int) -> str:
    """What a forked process made of a seed: `replied`, `refused`, a signal's name, or the traceback."""
    log = path / "failure.txt"
    pid = os.fork()
    if pid == 0:
        signal.alarm(SECONDS_MAX)
        faulthandler.disable()  # signals are expected
        try:
            status = life(path, seed)
        except BaseException:
            log.write_text(traceback.format_exc(), encoding="utf-8")
            status = WRONG
        os._exit(status)
    _, ended = os.waitpid(pid, 0)
    if os.WIFSIGNALED(ended):
        number = signal.Signals(os.WTERMSIG(ended))
        return number.name if number in SIGNALS else f"ended by {number.name}"
    known = {REPLIED: "replied", REFUSED: "refused", INCOMPLETE: "incomplete"}
    return known.get(os.WEXITSTATUS(ended)) or log.read_text(encoding="utf-8")


def outcomes(intact: Path, tmp_path: Path, seeds: range) -> Counter[str]:
    expected = {"replied", "refused", "incomplete", *(number.name for number in SIGNALS)}
    counts: Counter[str] = Counter()
    for seed in seeds:
        path = tmp_path / str(seed)
        shutil.copytree(intact, path)
        became = outcome(path, seed)
        assert became in expected, f"seed {seed}: {became}"
        counts[became] += 1
        shutil.rmtree(path)
    return counts


@pytest.mark.process
def test_flipped_bits_give_errors_and_no_wrong_document(intact: Path, tmp_path: Path) -> None:
    counts = outcomes(intact, tmp_path, range(12))
    assert counts["replied"] > 0


@pytest.mark.soak
def test_flipped_bits_for_longer(intact: Path, tmp_path: Path) -> None:
    counts = outcomes(intact, tmp_path, range(1000, 1200))
    print(dict(counts))
    assert counts["replied"] > counts["SIGSEGV"] + counts["SIGBUS"] + counts["SIGABRT"]
