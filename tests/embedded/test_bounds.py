"""The costs of an open store: memory, threads, imports, and the calls that an insert is made of.

Times differ from machine to machine; numbers of calls do not. `bench/embedded.py` measures the times.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.embedded.open_store import EmbeddedStore
from tests.embedded.test_opening import run

OPENED = """
import json, os, sys
def rss_kib():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
before = rss_kib()
import headrace
with headrace.open(sys.argv[1]) as store:
    list(store.shop.orders.find({"n": 1}))
    print(json.dumps([rss_kib() - before, sorted(sys.modules)]))
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells how much memory is resident")
def test_an_open_store_takes_less_than_26_mb_above_what_python_takes(tmp_path: Path) -> None:
    kib, modules = json.loads(run(OPENED, str(tmp_path / "data")))
    assert kib * 1024 < 26e6
    not_needed = {"asyncio", "hashlib", "pyarrow", "pymongo", "pyspark", "socket", "ssl", "subprocess", "uvloop"}
    assert not not_needed & set(modules)
    of_the_server = {name for name in modules if name.startswith("headrace.server.")}
    assert of_the_server <= {
        "headrace.server.failures",
        "headrace.server.group_commit",
        "headrace.server.clocks",
        *(f"headrace.server.{name}" for name in ("background", "job_steps", "ttl")),
    }  # fmt: skip  (the jobs, which a thread begins a second after the start)
    assert not [name for name in modules if name.split(".")[:2] in (["headrace", "wire"], ["headrace", "spark"])]


def test_importing_headrace_imports_neither_engine_nor_driver() -> None:
    program = (
        "import sys, headrace; print(sorted(name for name in sys.modules if name.startswith(('headrace', 'pym'))))"
    )
    assert run(program) == "['headrace']"


def test_a_store_has_one_thread_and_a_stream_none_until_it_calls_back() -> None:
    before = set(threading.enumerate())  # other tests' threads may be ending

    def names() -> list[str]:
        """Return the names of the store's threads; one that watches limited calls is the process's."""
        threads = [thread for thread in threading.enumerate() if thread not in before]
        return [thread.name for thread in threads if thread.name != "headrace-watch"]

    with headrace.open() as store:
        orders = store.shop.orders
        assert names() == ["headrace-jobs"]
        streams = [orders.watch() for _ in range(50)]
        orders.insert_one({})
        assert [stream.next().operation_type for stream in streams] == ["insert"] * 50
        assert names() == ["headrace-jobs"]
        streams[0].on("insert", print)
        assert len(names()) == 2
        with store.serve():
            assert len(names()) == 3
    for thread in threading.enumerate():  # that of the callbacks ends by itself
        if thread not in before:
            thread.join(60)
    assert names() == []


def calls_of(call: Callable[[], Any]) -> Counter[str]:
    """The functions of Python that a call calls, as `python`, and those of C by their names.

    Of ten calls it is the one with the least: others may meet a second that ends, or the garbage collector.
    """
    counts: list[Counter[str]] = []

    def note(frame: Any, event: str, what: Any) -> None:
        if event == "call":
            counts[-1]["python"] += 1
        elif event == "c_call":
            counts[-1][what.__qualname__] += 1

    for _ in range(3):  # what is imported, made or looked up once
        call()
    for _ in range(10):
        counts.append(Counter())
        sys.setprofile(note)
        try:
            call()
        finally:
            sys.setprofile(None)
    return min(counts, key=lambda counted: (counted["python"], counted.total()))


@pytest.fixture(name="store")
def _store() -> Any:
    with headrace.open() as store:
        yield store


def test_an_insert_is_four_puts_a_commit_and_few_calls(store: EmbeddedStore) -> None:
    orders = store.shop.orders
    made = calls_of(lambda: orders.insert_one({"item": "lamp", "price": 35, "rest": "x" * 250}))
    of_lmdb = {name: count for name, count in made.items() if name.startswith(("Environment.", "Transaction."))}
    # One read transaction is for those who read during the sync.
    assert of_lmdb == {
        "Environment.begin": 2, "Transaction.put": 4, "Transaction.commit": 1, "Transaction.abort": 1
    }  # fmt: skip
    assert made["python"] <= 72


def test_a_find_by_id_is_two_gets_and_few_calls(store: EmbeddedStore) -> None:
    orders = store.shop.orders
    orders.insert_one({"_id": 1})
    made = calls_of(lambda: orders.find_one({"_id": 1}))
    assert made["Environment.begin"] <= 1 and made["Transaction.get"] == 2  # a background job may have begun it
    assert made["python"] <= 72


def test_a_look_for_news_where_there_is_none_takes_no_lock(store: EmbeddedStore) -> None:
    stream = store.shop.orders.watch()
    made = calls_of(stream.try_next)
    assert made["python"] <= 3
    assert not [name for name in made if "acquire" in name or name.startswith("Environment.")]
