"""A Headrace whose event loop measures each of its callbacks and iterations; `callbacks.py` starts it.

    python bench/measured_server.py FILE serve --dbpath DIR ...

A callback that takes `LEAST_SECONDS` of CPU time or more becomes a line of FILE: its milliseconds, and the stacks that
a thread has seen meanwhile. It sees moments at which the interpreter may change threads, which is after a call of
C that took long, not in the middle of it. An iteration, all callbacks that were due at one time, becomes a line
likewise, with the callbacks that took most of it.
"""

from __future__ import annotations

import asyncio.events
import json
import os
import sys
import threading
import time
from collections import Counter
from typing import Any, TextIO

LEAST_SECONDS = 0.01
SAMPLE_SECONDS = 0.002
FRAME_COUNT = 8
STACK_COUNT = 3


class Sampler:
    """The stacks of the main thread while a callback runs."""

    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._stacks: Counter[str] = Counter()
        self.runs = False
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while True:
            time.sleep(SAMPLE_SECONDS)
            if self.runs:
                self._stacks[_stack(sys._current_frames().get(self._main))] += 1

    def taken(self) -> list[str]:
        """The most frequent ones since the last call."""
        stacks, self._stacks = self._stacks, Counter()
        return [stack for stack, _ in stacks.most_common(STACK_COUNT)]


def _stack(frame: Any) -> str:
    lines: list[str] = []
    while frame is not None and len(lines) < FRAME_COUNT:
        code = frame.f_code
        lines.append(f"{os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " < ".join(lines)


def measure(file: TextIO) -> None:
    """Measure the callbacks and iterations of all event loops of this process from now on."""
    run, iterate, sampler = asyncio.events.Handle._run, asyncio.BaseEventLoop._run_once, Sampler()  # type: ignore[attr-defined]
    seconds: Counter[str] = Counter()
    counts: Counter[str] = Counter()

    def measured(self: Any) -> Any:
        sampler.runs = True
        began, cpu = time.perf_counter(), time.thread_time()
        try:
            return run(self)
        finally:
            sampler.runs = False
            used = time.thread_time() - cpu
            name = getattr(self._callback, "__qualname__", type(self._callback).__name__)
            seconds[name] += used
            counts[name] += 1
            stacks = sampler.taken()
            if used >= LEAST_SECONDS:
                line = {"cpu_ms": used * 1000, "ms": (time.perf_counter() - began) * 1000, "stacks": stacks}
                file.write(json.dumps(line) + "\n")
                file.flush()

    def measured_iteration(self: Any) -> None:
        seconds.clear()
        counts.clear()
        cpu = time.thread_time()
        iterate(self)
        used = time.thread_time() - cpu
        if used >= LEAST_SECONDS:
            most = [f"{part * 1000:.0f} ms {name} x {counts[name]}" for name, part in seconds.most_common(STACK_COUNT)]
            file.write(json.dumps({"cpu_ms": used * 1000, "most": most}) + "\n")
            file.flush()

    asyncio.events.Handle._run = measured  # type: ignore[method-assign]
    asyncio.BaseEventLoop._run_once = measured_iteration  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # whose callbacks are not Python's
    measure(open(sys.argv.pop(1), "a", encoding="utf-8"))  # noqa: SIM115  (until the process ends)
    from headrace.cli.main import main

    sys.exit(main())
