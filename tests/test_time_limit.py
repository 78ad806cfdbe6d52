"""A filter, a stage or an update that takes too much CPU time for one document ends, and nothing after it does."""

from __future__ import annotations

import cProfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from headrace import limits, time_limit
from headrace.errors import CommandError, HandedOver
from headrace.query.expressions import Env, arrays, parse_expression
from headrace.time_limit import is_limited, limited, limited_call, watch

MAPPED = {"$map": {"input": {"$range": [0, 100_000]}, "in": {"$size": {"$range": [0, 100_000]}}}}


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(limits, "DOCUMENT_SECONDS_MAX", 0.0)
    monkeypatch.setattr(time_limit, "LOOK_SECONDS", 0.001)
    yield
    monkeypatch.setattr(watch, "memory_is_exceeded", lambda: False)


@limited
def endless(counted: Any) -> None:
    for _ in counted:
        pass


def code_of_endless() -> int:
    with pytest.raises(CommandError) as raised:
        endless(count())
    return raised.value.code


def test_a_call_that_takes_too_long_ends_wherever_it_is() -> None:
    assert [code_of_endless(), code_of_endless()] == [50, 50]
    assert not is_limited()
    with pytest.raises(CommandError) as raised:
        parse_expression({"$sum": {"$map": {"input": "$a", "in": MAPPED}}})(Env({"a": [1, 2, 3]}))
    assert raised.value.code == 50


def test_it_ends_in_any_thread() -> None:
    codes: list[int] = []
    threads = [threading.Thread(target=lambda: codes.append(code_of_endless())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert codes == [50, 50, 50]


def test_a_call_that_imports_a_module_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow machines take longer for their first filter than for any other."""
    (tmp_path / "imported_slowly.py").write_text("numbers = [number for number in range(3_000_000)]")
    monkeypatch.syspath_prepend(tmp_path)
    imported = limited(lambda name: len(import_module(name).numbers))
    assert imported("imported_slowly") == 3_000_000


def test_it_ends_without_the_cpu_time_of_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "pthread_getcpuclockid")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(code_of_endless).result(30) == 50


def test_a_call_ends_while_the_process_has_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DOCUMENT_SECONDS_MAX", 3600.0)
    monkeypatch.setattr(watch, "memory_is_exceeded", lambda: True)
    assert code_of_endless() == 146


def test_a_call_of_a_command_that_another_process_can_run_is_left_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DOCUMENT_SECONDS_MAX", 3600.0)
    monkeypatch.setattr(limits, "MOVED_DOCUMENT_SECONDS", 0.0)
    with ThreadPoolExecutor(1) as pool:
        here = threading.current_thread()
        monkeypatch.setattr(watch, "may_move", lambda thread: thread is here)
        with pytest.raises(HandedOver):
            endless(count())
        monkeypatch.setattr(limits, "DOCUMENT_SECONDS_MAX", 0.0)
        assert pool.submit(code_of_endless).result(30) == 50


def test_calls_and_results_pass_through() -> None:
    add = limited_call(lambda one, *, other: one + other)
    assert add(1, other=2) == 3
    assert limited(lambda value: (value, is_limited()))(1) == (1, True)
    assert limited(lambda value: add(value, other=1))(1) == 2
    with pytest.raises(ZeroDivisionError):
        limited(lambda value: 1 // value)(0)


def test_what_follows_a_call_is_never_ended() -> None:
    """Calls that take about as long as a look: most end before the error is raised, some while it is."""
    ended = 0
    for length in range(2000, 6000):
        try:
            endless(range(length))
        except CommandError:
            ended += 1
    assert ended < 4000
    assert code_of_endless() == 50


def test_a_call_that_was_looked_at_leaves_nothing_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would look for an exception between any two instructions from then on, and not go on in a profiler."""
    monkeypatch.setattr(limits, "DOCUMENT_SECONDS_MAX", 3600.0)
    calls = time_limit._of_thread.calls
    met = (number for number in count() if calls.seen == calls.count)
    assert limited(next)(met) >= 0
    profiler = cProfile.Profile()
    assert profiler.runcall(limited(sum), range(1000)) == 499_500


def test_no_long_array_is_made_while_the_process_has_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "memory_is_exceeded", lambda: True)
    arrays._check_length("$range", 1000)
    with pytest.raises(CommandError) as raised:
        arrays._check_length("$range", 1_000_000)
    assert raised.value.code == 146


def test_a_command_holds_no_long_constant_while_it_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DOCUMENT_SECONDS_MAX", 3600.0)
    made: list[int] = []
    monkeypatch.setattr(arrays, "_check_length", lambda name, length: made.append(length))
    for length, times in ((10, 1), (1_000_000, 3)):
        made.clear()
        expression = parse_expression({"$range": [0, length]})
        assert [len(expression(Env({}))) for _ in range(2)] == [length, length]
        assert made == [length] * times
