"""Sinks in `foreachBatch` at the end of their process, which must not come amid a batch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.spark.sinks.foreach_batch import ProcessEnding, _ActiveBatches

PROGRAM = """
import threading
from types import SimpleNamespace
from headrace.spark.sinks.foreach_batch import for_each_batch

began = threading.Event()

class Sink:
    def apply(self, batch):
        began.set()
        threading.main_thread().join()
        print("written", batch.query, batch.number, flush=True)

context = SimpleNamespace(getLocalProperty=lambda _: "q")
frame = SimpleNamespace(toArrow=lambda: None, sparkSession=SimpleNamespace(sparkContext=context))
threading.Thread(target=for_each_batch(Sink()), args=(frame, 7), daemon=True).start()
began.wait()
"""


def test_a_process_ends_after_the_batch_that_a_sink_is_writing() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "written q 7\n"


def test_no_batch_begins_once_the_process_ends() -> None:
    active = _ActiveBatches()
    active.begin("q")
    assert active.wait("another query", 0)
    assert not active.wait(None, 0, ending=True)
    with pytest.raises(ProcessEnding):
        active.begin("q")
    active.finish("q")
    assert active.wait("q", 0)
