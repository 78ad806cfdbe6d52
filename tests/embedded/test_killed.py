"""`kill -9` of a program that has a store open: what was acknowledged is there, and streams resume their tokens."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bson.json_util import dumps, loads

import headrace

pytestmark = pytest.mark.process

PROGRAM = """
import os, sys, threading, headrace
from bson.json_util import dumps
store = headrace.open(sys.argv[1])
orders = store.shop.orders
stream = orders.watch()

def say(*words):
    os.write(1, (" ".join(words) + "\\n").encode())  # a line at once, whatever other threads say

stream.on("insert", lambda event: say("event", event.document_id, dumps(event.resume_token)))

def insert(thread):
    for number in range(1_000_000):
        orders.insert_one({"_id": f"{thread}-{number}", "rest": "x" * 200})
        say("acknowledged", f"{thread}-{number}")

for thread in range(4):
    threading.Thread(target=insert, args=(thread,)).start()
"""


@pytest.mark.parametrize("after", [40, 400])
def test_nothing_acknowledged_is_missing_after_a_kill(tmp_path: Path, after: int) -> None:
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    lines: list[str] = []
    while len(lines) < after or not any(line.startswith("event") for line in lines):
        lines.append(program.stdout.readline())
        assert lines[-1], "the program has ended by itself"
    program.send_signal(signal.SIGKILL)
    lines += [line for line in program.stdout if line.endswith("\n")]
    program.wait()
    acknowledged = [line.split()[1] for line in lines if line.startswith("acknowledged") and len(line.split()) == 2]
    seen = [line.split(maxsplit=2) for line in lines if line.startswith("event") and line.endswith("}\n")]
    with headrace.open(tmp_path) as store:
        orders = store.shop.orders
        there = {document["_id"] for document in orders.find()}
        assert set(acknowledged) <= there
        assert orders.count_documents({}) == len(there)
        events = [
            (event.document_id, dumps(event.resume_token)) for event in iter(behind_first(store, seen).try_next, None)
        ]
        assert [(number, dumps(loads(token))) for _, number, token in seen[1:]] == events[: len(seen) - 1]
        assert {number for number, _ in events} | {seen[0][1]} <= there


def behind_first(store: Any, seen: list[list[str]]) -> Any:
    """A stream behind the first event that the program has seen."""
    return store.shop.orders.watch(resume_after=loads(seen[0][2]))
