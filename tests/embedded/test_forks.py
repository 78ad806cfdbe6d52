"""The child of a fork: every call on a store that its parent has open raises `Closed` at once, whatever locks other
threads of the parent held."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, faulthandler, json, os, sys, threading, headrace

store = headrace.open(sys.argv[1])
store.shop.orders.insert_many([{"_id": number} for number in range(300)])
served = store.serve()
pulled, queued, pushed = (store.shop.orders.watch() for _ in range(3))
events = queued.events(maxsize=2)
pushed.on("insert", lambda event: None)
cursor = store.shop.orders.find(batch_size=2)
next(cursor)
session = store.start_session()
transaction, aborted = store.start_session(), store.start_session()
for each in (transaction, aborted):
    each.start_transaction()
    store.shop.orders.insert_one({"_id": each.session_id["id"]}, session=each)
loop = asyncio.new_event_loop()

async def opened():
    other = await headrace.open_async(sys.argv[2])
    stream = await other.shop.c.watch()
    await other.shop.c.insert_one({"_id": 1})
    await stream.next()
    return other, stream

other, stream = loop.run_until_complete(opened())
local = store._local
for lock in (local.lock, local.writes.gate._lock, pulled._reading, queued._buffers[0]._changed, local.serving,
             store._jobs._preparing, other._wrapped._local.lock, other._wrapped._local.writes.gate._lock):
    held = threading.Event()
    def hold(lock=lock, held=held):
        lock.acquire()
        held.set()
        threading.Event().wait()
    threading.Thread(target=hold, daemon=True).start()
    assert held.wait(60)

def later(coroutine):
    new = asyncio.new_event_loop()
    try:
        return new.run_until_complete(coroutine())
    finally:
        new.close()

async def anext_of_stream():
    return await stream.next()

orders = store.shop.orders
CALLS = {
    "insert_one": lambda: orders.insert_one({"_id": "x"}),
    "insert_many": lambda: orders.insert_many([{"_id": "x"}, {"_id": "y"}]),
    "update_many": lambda: orders.update_many({}, {"$set": {"a": 1}}),
    "drop": lambda: orders.drop(),
    "create_index": lambda: orders.create_index("a"),
    "find_one": lambda: orders.find_one(),
    "count": lambda: orders.count_documents({}),
    "cursor": lambda: list(cursor),
    "aggregate": lambda: list(orders.aggregate([])),
    "watch": lambda: orders.watch(),
    "next": lambda: pulled.next(),
    "next with a timeout": lambda: pulled.next(timeout=1),
    "try_next": lambda: pulled.try_next(),
    "queue": lambda: events.get(),
    "on": lambda: pulled.on("insert", print),
    "commit": lambda: transaction.commit_transaction(),
    "in a transaction": lambda: orders.insert_one({"_id": "z"}, session=transaction),
    "session": lambda: orders.find_one({}, session=session),
    "prune": lambda: store.prune(),
    "serve": lambda: store.serve(),
    "databases": lambda: store.list_database_names(),
    "async insert": lambda: later(lambda: other.shop.c.insert_one({"_id": 2})),
    "async find": lambda: later(lambda: other.shop.c.find_one()),
    "async next": lambda: later(anext_of_stream),
    "async try_next": lambda: later(stream.try_next),
}
ENDS = {
    "stream.close": lambda: pulled.close(),
    "queue's stream.close": lambda: queued.close(),
    "join": lambda: pushed.join(timeout=1),
    "cursor.close": lambda: cursor.close(),
    "abort": lambda: aborted.abort_transaction(),
    "end_session": lambda: transaction.end_session(),
    "served.close": lambda: served.close(),
    "store.close": lambda: store.close(),
    "store.close again": lambda: store.close(),
    "async stream.close": lambda: later(stream.close),
    "async store.close": lambda: later(other.close),
}
child = os.fork()
if child == 0:
    faulthandler.dump_traceback_later(60, exit=True)
    results = {}
    for name, call in {**CALLS, **ENDS}.items():
        print("#", name, file=sys.stderr, flush=True)
        try:
            call()
            results[name] = "ended" if name in ENDS else "answered"
        except headrace.Closed as error:
            results[name] = "Closed" if "forked" in str(error) else str(error)
        except Exception as error:
            results[name] = repr(error)
    expected = {**dict.fromkeys(CALLS, "Closed"), **dict.fromkeys(ENDS, "ended")}
    wrong = {name: result for name, result in results.items() if result != expected[name]}
    print(json.dumps([store.is_open, wrong]), flush=True)
    sys.exit(0)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), flush=True)
os._exit(0)
"""


@pytest.mark.process
def test_every_call_in_a_child_raises_closed_and_none_hangs(tmp_path: Path) -> None:
    arguments = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path / "a"), str(tmp_path / "b")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.split("\n")[:2] == ["[false, {}]", "0"], done.stdout + done.stderr
