"""A server that has become idle returns its memory, and says how much it has."""

from __future__ import annotations

import mmap
import resource
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import headrace
from headrace import limits
from headrace.server.process import Idleness, forget_pages
from headrace.values.bson import encode
from tests.drivers.serving import serving
from tests.waiting import until

from .raw import RawClient

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is measured on Linux")
MEBIBYTE = 1024 * 1024


def resident_mb(client: RawClient) -> int:
    return int(client.ask({"serverStatus": 1}, "admin")["mem"]["resident"])


def mapped_bytes(path: Path) -> int:
    """How much of a mapped file counts as memory of this process."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    sizes = [next(line for line in lines if line.startswith("Rss:")) for line in lines if line.endswith(str(path))]
    return sum(int(size.split()[1]) * 1024 for size in sizes)


def test_memory_is_returned_when_next_to_nothing_comes_and_again_when_it_has_grown() -> None:
    metrics = defaultdict(int)
    idleness, second = Idleness(metrics), limits.IDLE_SECONDS

    def is_due(number: float, came: int, size: int = 0) -> bool:
        metrics["network.bytesIn"] += came
        due = idleness.is_due(number * second, size)
        if due:
            idleness.left_bytes = size
        return due

    busy, more = limits.IDLE_BYTES, limits.IDLE_GROWTH_BYTES
    assert [is_due(1, busy), is_due(2, busy)] == [False, False]
    assert [is_due(3, busy - 1), is_due(4, 0), is_due(5, 300)] == [True, False, False]  # once
    assert [is_due(6, 0, more), is_due(7, 0, more + 1), is_due(8, 0, more + 1)] == [False, True, False]
    assert [is_due(9, busy), is_due(9.5, 0), is_due(10, 0)] == [False, False, True]


def test_the_pages_of_a_file_are_forgotten_and_can_be_read_again(tmp_path: Path) -> None:
    path, content = tmp_path / "data.mdb", bytes(range(256)) * 32 * 1024
    path.write_bytes(content)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[:] == content and mapped_bytes(path) >= len(content)
        forget_pages(path)
        assert mapped_bytes(path) == 0
        assert mapped[:] == content


def test_the_memory_in_server_status_is_that_of_now() -> None:
    with headrace.Server() as server, RawClient(server.address) as client:
        passing = b"x" * (256 * MEBIBYTE)
        passing_mb = resident_mb(client)
        del passing
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024 >= 256
        assert resident_mb(client) <= passing_mb - 200


@pytest.mark.process
def test_a_server_gives_its_memory_back_when_it_is_idle(tmp_path: Path) -> None:
    """The test takes as long as the server needs to become idle."""
    with serving(tmp_path) as address, RawClient(address) as client:
        documents = [encode({"_id": number, "x": "x" * MEBIBYTE}) for number in range(20)]
        for collection in "abcdefgh":
            assert client.ask({"insert": collection}, documents=documents)["n"] == 20
            assert client.ask({"count": collection, "query": {"x": "y"}})["n"] == 0
        process = Path("/proc", str(client.ask({"serverStatus": 1}, "admin")["pid"]), "statm")

        def memory() -> int:
            return int(process.read_text().split()[1]) * resource.getpagesize() // MEBIBYTE

        assert memory() > 150
        until(lambda: memory() < 120, seconds=60)
        assert client.ask({"count": "a", "query": {"x": {"$gt": "w"}}})["n"] == 20
