"""Sinks in `foreachBatch` at the end of their process, which must not come amid a batch."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.spark.errors import error_line
from headrace.spark.session.interrupts import ActiveBatches, QueryStopping
from headrace.spark.sinks.foreach_batch import BatchTooLarge, for_each_batch

PROGRAM = """
import threading
from types import SimpleNamespace
from headrace.spark.session.interrupts import ActiveBatches, QueryStopping
from headrace.spark.sinks.foreach_batch import for_each_batch

began = threading.Event()

class Sink:
    def apply(self, batch):
        began.set()
        threading.main_thread().join()
        print("written", batch.query, batch.number, flush=True)

context = SimpleNamespace(getLocalProperty=lambda _: "q")
frame = SimpleNamespace(toArrow=lambda: None, sparkSession=SimpleNamespace(sparkContext=context))
write = for_each_batch(Sink())

def write_two():
    write(frame, 7)
    write(frame, 8)

threading.Thread(target=write_two, daemon=True).start()
began.wait()
"""


def test_a_process_ends_after_the_batch_that_a_sink_is_writing_and_begins_no_other() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("written q 7\n", "")


def test_the_end_of_the_process_waits_for_every_batch() -> None:
    active = ActiveBatches()
    active.begin("q")
    assert active.wait("another query", 0)
    assert not active.wait(None, 0, ending=True)
    active.finish("q")
    assert active.wait("q", 0)


def test_a_batch_that_comes_while_queries_are_stopped_waits_and_is_left_to_the_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    active, waiting = ActiveBatches(), threading.Event()
    wait_for = active._changed.wait_for
    with ThreadPoolExecutor() as pool:
        with active.held(0):
            monkeypatch.setattr(active._changed, "wait_for", lambda *given: (waiting.set(), wait_for(*given)))
            coming = pool.submit(active.begin, "q")
            assert waiting.wait(60) and not coming.done()
        with pytest.raises(QueryStopping):
            coming.result(60)
    active.begin("q")


@pytest.mark.parametrize(
    "said", ["is bigger than spark.driver.maxResultSize (1024.0 MiB)", "java.lang.OutOfMemoryError: Java"]
)
def test_a_batch_that_the_driver_does_not_take_is_an_error_that_says_what_to_do(said: str) -> None:
    def to_arrow() -> None:
        raise RuntimeError(f"An error occurred while calling o1: Total size of serialized results of 4 tasks {said}")

    context = SimpleNamespace(getLocalProperty=lambda _: "q")
    sink: Any = SimpleNamespace()
    frame: Any = SimpleNamespace(toArrow=to_arrow, sparkSession=SimpleNamespace(sparkContext=context))
    with pytest.raises(BatchTooLarge, match=r"batch 7 .*maxBytesPerTrigger") as raised:
        for_each_batch(sink)(frame, 7)
    assert "\n" not in error_line(raised.value)
