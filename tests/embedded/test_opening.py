"""Opening and closing a store in a program: what is imported, who else may open it, forks, exits, threads, jobs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from bson import Int64
from pymongo import MongoClient
from pymongo.errors import OperationFailure

import headrace
from headrace.testing.clock import FakeClock
from tests.waiting import until


def run(program: str, *arguments: str) -> str:
    """What a Python program prints, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.process
def test_opening_imports_no_server_no_loop_and_no_driver(tmp_path: Path) -> None:
    program = """
import sys, headrace
with headrace.open(sys.argv[1]) as store:
    store._calls.run("shop", {"ping": 1})
    unwanted = {"asyncio", "uvloop", "pymongo", "pyspark", "pyarrow", "headrace.server.core", "headrace.wire"}
    print(sorted(unwanted & sys.modules.keys()))
"""
    assert run(program, str(tmp_path / "data")) == "[]"


def test_documents_are_there_when_it_is_opened_again(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "data") as store:
        store.shop.orders.insert_one({"_id": 1})
        token = store.shop.orders.watch().resume_token
    with headrace.open(tmp_path / "data") as store:
        store.shop.orders.insert_one({"_id": 2})
        assert store.shop.orders.watch(resume_after=token).next(timeout=60).document_id == 2
        assert store.shop.orders.count_documents({}) == 2


def test_a_temporary_directory_is_removed() -> None:
    with headrace.open() as store:
        path = Path(store.path)
        assert path.exists()
    store.close()
    assert not path.exists()
    with pytest.raises(headrace.Closed):
        store.shop.orders.find_one()


def test_a_second_process_is_refused_with_a_hint(tmp_path: Path) -> None:
    with headrace.open(tmp_path):
        for open_it in (headrace.open, headrace.connect, lambda path: headrace.Server(path).start()):
            with pytest.raises(headrace.DirectoryInUse, match=r"store\.serve\(\)"):
                open_it(tmp_path)


@pytest.mark.process
def test_the_child_of_a_fork_gets_a_clear_error(tmp_path: Path) -> None:
    program = """
import os, sys, headrace
store = headrace.open(sys.argv[1])
store.shop.orders.insert_one({"_id": 1})
store._local.lock.acquire()  # as if another thread were in the engine
child = os.fork()
if child == 0:
    try:
        store.shop.orders.insert_one({"_id": 2})
    except headrace.Closed as error:
        print("forked" in str(error), flush=True)
    store.close()
    sys.exit(0)
os.waitpid(child, 0)
store._local.lock.release()
store.shop.orders.insert_one({"_id": 3})
print(store.shop.orders.count_documents({}))
"""
    assert run(program, str(tmp_path)).split() == ["True", "2"]


@pytest.mark.process
def test_a_store_that_nobody_closes_is_closed_at_the_end_of_the_interpreter(tmp_path: Path) -> None:
    program = """
import sys, threading, headrace
store = headrace.open(sys.argv[1])
stream = store.shop.orders.watch()
stream.on("insert", print)
waiting = threading.Thread(target=stream.next, daemon=True)
waiting.start()
store.serve()
store.shop.orders.insert_one({"_id": 1})
"""
    run(program, str(tmp_path))
    with headrace.open(tmp_path) as store:
        assert store.shop.orders.count_documents({}) == 1


@pytest.mark.long
def test_writes_of_many_threads_share_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with headrace.open(tmp_path) as store:
        orders, syncs = store.shop.orders, []
        sync = store._local.store.sync

        def counted(txn: Any) -> None:
            syncs.append(1)
            sync(txn)

        monkeypatch.setattr(store._local.store, "sync", counted)
        orders.insert_one({"_id": "first"})

        def insert(thread: int) -> None:
            for number in range(100):
                orders.insert_one({"_id": thread * 100 + number})

        threads = [threading.Thread(target=insert, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert orders.count_documents({}) == 801
        assert len(syncs) < 801


@pytest.mark.long
def test_a_long_read_lets_others_work() -> None:
    with headrace.open() as store:
        shop, codes = store.shop, list[Any]()
        shop.c.insert_many([{"n": number} for number in range(10_000)])
        far = {"$match": {"$expr": {"$gt": ["$n", {"$add": ["$$n", 20_000]}]}}}
        cross = {"$lookup": {"from": "c", "let": {"n": "$n"}, "pipeline": [far], "as": "x"}}
        none = {"$match": {"x": {"$ne": []}}}  # so that the first batch takes the whole read

        def scan() -> None:
            with pytest.raises(OperationFailure) as failure:
                list(shop.c.aggregate([cross, none]))
            codes.append(failure.value.code)

        def running() -> list[Any]:
            operations = store.admin.command("currentOp")["inprog"]
            return [one for one in operations if one.get("command", {}).get("aggregate") == "c"]

        thread = threading.Thread(target=scan)
        thread.start()
        until(running)
        for number in range(20):
            shop.orders.insert_one({"n": number})
        operations = running()
        assert operations, codes
        store.admin.command("killOp", op=operations[0]["opid"])
        thread.join()
        assert codes == [11601]


@pytest.mark.long
def test_a_long_write_lets_others_work_and_can_be_killed() -> None:
    with headrace.open() as store:
        shop = store.shop
        shop.c.insert_many([{"_id": number} for number in range(20_000)])
        failures: list[OperationFailure] = []

        def update() -> None:
            try:
                for number in count():
                    shop.c.update_many({}, {"$set": {"n": number}})
            except OperationFailure as error:
                failures.append(error)

        thread = threading.Thread(target=update)
        thread.start()
        while not failures:
            shop.other.insert_one({})
            for operation in store.admin.command("currentOp")["inprog"]:
                if operation.get("command", {}).get("update") == "c":
                    store.admin.command("killOp", op=operation["opid"])
        thread.join()
        assert failures[0].code == 11601


def test_a_long_write_is_seen_and_can_be_killed_while_a_part_of_it_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with headrace.open() as store, ThreadPoolExecutor(1) as other:
        shop, sync = store.shop, store._local.store.sync
        shop.c.insert_many([{"_id": number} for number in range(1_000)])
        store._local.caller().turns.seconds = 0.0
        seen: list[list[Any]] = []

        def look() -> None:
            seen.append([operation["command"]["update"] for operation in long_operations()])
            for operation in long_operations() if len(seen) == 50 else ():
                store.admin.command("killOp", op=operation["opid"])

        def long_operations() -> list[Any]:
            return [one for one in store.admin.command("currentOp")["inprog"] if "update" in one.get("command", {})]

        def look_and_sync(txn: Any) -> None:
            other.submit(look).result()
            sync(txn)

        monkeypatch.setattr(store._local.store, "sync", look_and_sync)
        with pytest.raises(OperationFailure) as failure:
            shop.c.update_many({"$expr": {"$gte": [{"$abs": "$_id"}, 0]}}, {"$set": {"n": 1}})  # one by one
        assert failure.value.code == 11601
        assert seen[:50] == [["c"]] * 50
        monkeypatch.setattr(store._local.store, "sync", sync)
        assert not long_operations() and not store._local.held
        assert 0 < shop.c.count_documents({"n": 1}) < 1_000


def test_a_write_waits_for_a_transaction_that_holds_its_document() -> None:
    with headrace.open() as store, store.start_session() as session:
        orders = store.shop.orders
        orders.insert_one({"_id": 1, "n": 0})
        session.start_transaction()
        orders.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)
        thread = threading.Thread(target=lambda: orders.update_one({"_id": 1}, {"$inc": {"n": 10}}))
        thread.start()
        until(lambda: store._local.parked._parked)
        session.commit_transaction()
        thread.join()
        assert orders.find_one({"_id": 1}) == {"_id": 1, "n": 11}


def test_a_write_that_fails_inside_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with headrace.open() as store:
        orders, engine = store.shop.orders, store._local.engine
        run_write = engine.run_write

        def fail(command: Any, request: Any, txn: Any) -> Any:
            if request.db == "bad":
                raise RuntimeError("no such thing")
            return run_write(command, request, txn)

        monkeypatch.setattr(engine, "run_write", fail)
        with pytest.raises(OperationFailure, match="nothing more was written"):
            store.bad.orders.insert_one({"_id": 1})
        orders.insert_one({"_id": 2})
        assert orders.count_documents({}) == 1


def test_an_interrupted_commit_makes_the_store_unusable_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = headrace.open(tmp_path)
    orders = store.shop.orders
    orders.insert_one({"_id": 1})

    def interrupted(txn: Any) -> None:
        txn.kv.commit()
        raise KeyboardInterrupt

    monkeypatch.setattr(store._local.store, "sync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        orders.insert_one({"_id": 2})
    with pytest.raises(headrace.Closed, match="open the store again"):
        orders.find_one()
    store.close()
    with headrace.open(tmp_path) as again:
        assert again.shop.orders.count_documents({}) == 2


def test_a_full_map_refuses_writes_and_loses_nothing(tmp_path: Path) -> None:
    with headrace.open(tmp_path, map_bytes=1 << 20) as store:
        blocks, stored = store.shop.blocks, []
        with pytest.raises(OperationFailure, match="--mapSize") as refused:
            for number in range(100):
                blocks.insert_one({"_id": number, "block": b"x" * 50_000})
                stored.append(number)
        assert refused.value.code == 14031 and len(stored) > 5
        with pytest.raises(OperationFailure):
            blocks.insert_many([{"_id": number, "block": b"x" * 50_000} for number in range(200, 240)])
        assert blocks.distinct("_id") == stored
    with headrace.open(tmp_path) as store:
        store.shop.blocks.insert_many([{"_id": number, "block": b"x" * 50_000} for number in range(200, 240)])
        assert store.shop.blocks.count_documents({}) == len(stored) + 40


def test_background_jobs_expire_documents() -> None:
    clock = FakeClock()
    with headrace.open(clock=clock) as store:
        orders = store.shop.orders
        orders.create_index("t", expireAfterSeconds=10)
        stream = orders.watch(operation_types=["delete"])
        orders.insert_one({"_id": 1, "t": __import__("datetime").datetime(1990, 1, 1)})
        clock.advance(120_000)
        assert stream.next(timeout=60).document_id == 1


def profiled(store: Any, name: str) -> list[Any]:
    """The profiler's documents of a command, once there are some."""
    return until(lambda: list(store.shop["system.profile"].find({"op": name})))


@pytest.mark.long
def test_what_the_profiler_measures_is_stored() -> None:
    with headrace.open() as store:
        store.shop.command("profile", 2)
        store.shop.orders.insert_one({"_id": 1})
        assert profiled(store, "insert")[0]["ns"] == "shop.orders"
        with store.serve() as served, MongoClient[Any](served.uri) as client:
            client.shop.orders.delete_one({"_id": 1})
            assert profiled(store, "remove")[0]["ns"] == "shop.orders"
        store.shop.command("profile", 0)
        assert store.shop["system.profile"].options()["capped"]


def test_slow_commands_are_logged_while_the_store_is_served() -> None:
    with headrace.open() as store, store.serve(), pytest.MonkeyPatch.context() as patch:
        slow: list[str] = []
        patch.setattr("headrace.server.logs.slow_operation", lambda request, *_: slow.append(request.name))
        store.shop.command("profile", 0, slowms=0)
        store.shop.orders.insert_one({"_id": 1})
        assert "insert" in slow


def test_a_forgotten_cursor_is_closed() -> None:
    with headrace.open() as store:
        orders = store.shop.orders
        orders.insert_many([{"_id": number} for number in range(10)])
        cursor = orders.find(batch_size=2)
        next(cursor)
        cursors = store._local.engine.cursors
        number = cursor.cursor_id
        assert cursors.peek(number) is not None
        del cursor
        store._local.close_forgotten()
        assert cursors.peek(number) is None


def test_clients_and_threads_share_a_served_store(tmp_path: Path) -> None:
    with headrace.open(tmp_path) as store:
        orders = store.shop.orders
        with store.serve() as served, MongoClient[Any](served.uri) as client:
            threads = [
                threading.Thread(target=lambda target=target: [target.insert_one({}) for _ in range(50)])
                for target in (orders, orders, client.shop.orders, client.shop.orders)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert client.shop.orders.count_documents({}) == orders.count_documents({}) == 200
            with pytest.raises(RuntimeError, match="served already"):
                store.serve()
            assert client.admin.command("hello")["isWritablePrimary"]
        orders.insert_one({})
        with store.serve() as served, MongoClient[Any](served.uri) as client:
            assert client.shop.orders.count_documents({}) == 201


def test_a_client_that_waits_gets_the_programs_events() -> None:
    with headrace.open() as store, store.serve() as served, MongoClient[Any](served.uri) as client:
        with client.shop.orders.watch(max_await_time_ms=60_000) as stream:
            seen: list[Any] = []
            thread = threading.Thread(target=lambda: seen.append(stream.next()))
            thread.start()
            assert store._local.core is not None
            until(lambda: store._local.core.notifier._parked)
            store.shop.orders.insert_one({"_id": 1})
            thread.join()
        assert seen[0]["documentKey"] == {"_id": 1}


def test_connect_gives_a_client_of_pymongos(tmp_path: Path) -> None:
    with headrace.connect(tmp_path, tz_aware=True) as client:
        client.shop.orders.insert_one({"_id": Int64(1)})
        with client.start_session() as session, session.start_transaction():
            client.shop.orders.insert_one({"_id": 2}, session=session)
        assert client.address is None or os.path.isabs(client.address[0])
    with headrace.open(tmp_path) as store:
        assert store.shop.orders.count_documents({}) == 2
