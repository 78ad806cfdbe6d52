"""A seeded simulation of everything at once: the steps are drawn, taken and recorded; each answer is checked.

    simulation = Simulation(folder, seed=7)
    simulation.run(2000)         raises `Finding` for what no order of the steps explains
    simulation.steps             → what was done, which `replay` does again, also with some steps left out

Nothing waits, sleeps or runs concurrently: the same seed does the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from bson import Int64

from headrace import limits
from tests.simulation import bulks, catalog_changes, reads, writes
from tests.simulation.language import Document
from tests.simulation.model import Finding, collection_of, is_series
from tests.simulation.schedule import Schedule, Step
from tests.simulation.transactions import CREATES, ModelTransaction, TransactionCheck
from tests.simulation.watching import Client, Watching
from tests.simulation.world import ENDED, READER, Pending, Reply, World

ROLES: Final = (
    ("read",) * 3
    + ("write",) * 5
    + ("catalog",) * 2
    + ("transaction",) * 2
    + ("stream",) * 4
    + ("tail", "compact", "transaction")
)


class Simulation(Watching):
    """The world, its clients, and the draw."""

    def __init__(self, path: Path, seed: int | None) -> None:
        self.world = self._made(path)
        self.steps: list[Step] = []
        self.clients = [Client(number, role) for number, role in enumerate(ROLES)]
        self.failed_commits: list[ModelTransaction] = []
        """Transactions whose commit has failed, which have their locks until a background job undoes them."""
        self._schedule = self._scheduled(Random(seed))

    def _made(self, path: Path) -> World:
        """The world of the simulation."""
        return World(path)

    def _scheduled(self, random: Random) -> Schedule:
        return Schedule(self, random)

    def close(self) -> None:
        """Close the store."""
        self.world.close()

    # Steps.

    def run(self, count: int) -> None:
        """Draw and take so many steps, then let everything end. Raises `Finding`."""
        for step in self._schedule.first_steps():
            self.steps.append(step)
            self.take(step)
        for _ in range(count - len(self.steps)):
            step = self._schedule.next()
            self.steps.append(step)
            self.take(step)
        self.end()

    def replay(self, steps: Iterable[Step]) -> None:
        """Take recorded steps, but for those that are not possible any more. Raises `Finding`."""
        for step in steps:
            self.steps.append(step)
            self.take(step)
        self.end()

    def take(self, step: Step) -> None:
        """Take a step, if it is possible now."""
        name, *arguments = step
        if self.is_possible(step):
            getattr(self, f"_do_{name}")(*arguments)

    def is_possible(self, step: Step) -> bool:
        """Whether a step can be taken now."""
        world, name = self.world, step[0]
        group, job = world.group, world.job
        if name in ("ask", "start", "resume", "up", "kill", "run"):
            pending = world.pending.get(step[1])
            phase = "idle" if pending is None else pending.phase
            possible = {
                "start": ("idle",), "resume": ("reading", "woken"), "up": ("parked",), "run": ("queued", "writing"),
                "kill": ("reading", "writing", "asking"), "ask": ("asking",),
            }[name]  # fmt: skip
            if name == "run" and (group is None or not group.takes_more):
                return False
            if name == "up" and pending is not None and pending.wait is not None:
                return phase == "parked" and pending.wait.wait_ms < limits.AWAIT_MS_MAX
            return phase in possible
        if name in ("begin", "job"):
            return group is None if name == "begin" else job is None
        if name == "step_job":
            return job is not None and job.write is None
        is_open = group is not None and group.phase == "open"
        if name == "run_job":
            return group is not None and group.takes_more and job is not None and job.is_queued
        return {
            "prepare": is_open,
            "sync": group is not None and group.phase == "prepared",
            "publish": group is not None and group.phase == "synced",
            "fail": group is not None and group.phase != "synced",
        }.get(name, True)

    def _do_resume(self, number: int, count: int) -> None:
        self.world.resume(number)
        self._look_at_parked(number)
        for _ in range(count - 1):
            pending = self.world.pending.get(number)
            if pending is None or pending.phase != "reading":
                return
            self.world.resume(number)

    def _do_ask(self, number: int, fails: bool) -> None:
        self.world.ask(number, fails=fails)

    def _do_start(self, number: int, op: Document) -> None:
        getattr(self, f"_start_{op['do']}", self._start_plain)(self.clients[number], op)
        self._look_at_parked(number)

    def _do_up(self, number: int) -> None:
        self.world.time_is_up(number)

    def _do_kill(self, number: int) -> None:
        if self.world.pending[number].turn is not None:
            self.world.kill(number)

    def _do_begin(self) -> None:
        self.world.begin()

    def _do_run(self, number: int) -> None:
        self.world.run(number)

    def _do_prepare(self) -> None:
        self.world.prepare()

    def _do_sync(self) -> None:
        self.world.sync()

    def _do_publish(self) -> None:
        self.world.publish()
        for client in self.clients:
            self._look_at_parked(client.number)

    def _do_fail(self) -> None:
        self.world.fail()

    def _do_job(self, name: str, entries: int) -> None:
        self.world.begin_job(name, entries=entries)

    def _do_step_job(self) -> None:
        self.world.step_job()

    def _do_run_job(self) -> None:
        self.world.run_job()

    def _do_clock(self, ms: int) -> None:
        self.world.clock.advance(ms)

    def _do_crash(self) -> None:
        self._has_reopened(self.world.crash())

    def _has_reopened(self, lost: list[tuple[int, Pending]]) -> None:
        """The directory was opened anew, and these commands had no answer."""
        for number, pending in lost:
            client = self.clients[number]
            if pending.op.get("retry"):
                pending.turns = pending.earlier + pending.turns
                client.sent = (pending.op, client.transaction_number, pending, None)
        for client in self.clients:
            client.cursor, client.transactions, client.tail = None, [], None
            if client.stream is not None:
                client.stream.cursor = 0
        self.compare()

    # Reads, writes and the catalog.

    def _start_plain(self, client: Client, op: Document) -> None:
        kind, world = op["do"], self.world
        if kind in reads.READS:
            database = reads.split(op["ns"])[0]
            world.send(client.number, database, reads.body_of(op), op, partial(self._has_read, client))
        elif kind in writes.WRITES:
            self._write(client, op)
        else:
            body = catalog_changes.body_of(op)
            world.send(client.number, catalog_changes.database_of(op), body, op, self._has_changed_catalog)

    def _has_read(self, client: Client, reply: Reply, pending: Pending) -> None:
        op, documents = pending.op, []
        if reply["ok"] == 1.0 and "cursor" in reply:
            cursor = reply["cursor"]
            documents = cursor["firstBatch"]
            if cursor["id"]:
                client.cursor = (cursor["id"], cursor["ns"], op, documents, pending.since)
                return
        self._explain_read(op, reply, documents, pending.since, is_one=True)

    def _explain_read(self, op: Document, reply: Reply, documents: list[Document], since: int, *, is_one: bool) -> None:
        if reply["ok"] != 1.0 and reply["code"] in ENDED:
            return
        is_one = is_one or op["do"] in ("listCollections", "listIndexes")  # their cursors hold all
        reads.explain(op, reply, documents, self.world.states[since:], is_one=is_one)

    def _start_getMore(self, client: Client, op: Document) -> None:
        if client.cursor is None:
            return
        cursor = {"id": client.cursor[0], "ns": client.cursor[1]}
        database, body = reads.split(cursor["ns"])[0], self._more_of(cursor, op["batch"])
        self.world.send(client.number, database, body, op, partial(self._has_more, client))

    @staticmethod
    def _more_of(cursor: Document, size: int | None) -> Document:
        body = {"getMore": Int64(cursor["id"]), "collection": reads.split(cursor["ns"])[1]}
        return {**body, "batchSize": size} if size else body

    def _has_more(self, client: Client, reply: Reply, pending: Pending) -> None:
        assert client.cursor is not None
        *_, op, documents, since = client.cursor
        if reply["ok"] == 1.0:
            documents += reply["cursor"]["nextBatch"]
            if reply["cursor"]["id"]:
                return
        client.cursor = None
        if reply["ok"] != 1.0 and reply["code"] == 43:
            raise Finding("read", f"the cursor of {op} is gone: {reply}")
        self._explain_read(op, reply, documents, since, is_one=False)

    def _write(self, client: Client, op: Document) -> None:
        body, sequences = writes.body_of(op)
        client.sent = None
        if op.get("retry"):
            client.transaction_number += 1
            body |= {"lsid": client.lsid, "txnNumber": Int64(client.transaction_number)}
        database = writes.database_of(op)
        self.world.send(client.number, database, body, op, partial(self._has_written, client), sequences)

    def _has_written(self, client: Client, reply: Reply, pending: Pending) -> None:
        if self._has_more_results(client, partial(self._has_written, client), reply, pending):
            return
        if pending.op.get("retry"):
            client.sent = (pending.op, client.transaction_number, pending, reply)
        self._explain_write(pending, reply)

    def _has_more_results(
        self, client: Client, finish: Callable[[Reply, Pending], None], reply: Reply, pending: Pending
    ) -> bool:  # fmt: skip
        """Whether a bulkWrite has further results, which are then read before `finish` is called again."""
        cursor = reply["cursor"] if pending.op["do"] == "bulkWrite" and reply["ok"] == 1.0 else {"id": 0}
        if not cursor["id"]:
            return False

        def more(answer: Reply, _: Pending) -> None:
            if answer["ok"] == 1.0:
                cursor["firstBatch"] += answer["cursor"]["nextBatch"]
                cursor["id"] = answer["cursor"]["id"]
                finish(reply, pending)
            elif answer["code"] not in ENDED:
                raise Finding("bulk", f"the results of {pending.op} are gone: {answer}")

        body = self._more_of(cursor, None) | ({"lsid": client.lsid} if pending.op.get("retry") else {})
        self.world.send(client.number, "admin", body, {"do": "results", "calm": pending.op["calm"]}, more)
        return True

    def _explain_write(self, pending: Pending, reply: Reply) -> None:
        if not pending.turns:
            if reply["ok"] != 1.0 and reply["code"] in ENDED:
                return
            raise Finding("write", f"{pending.op} was refused: {reply}")
        writes.explain(pending.op, pending, reply, self.world.states)

    def _start_resend(self, client: Client, _: Document) -> None:
        """Send a retryable write again."""
        if client.sent is None:
            return
        op, number, before, _ = client.sent
        body, sequences = writes.body_of(op)
        body |= {"lsid": client.lsid, "txnNumber": Int64(number)}
        database = writes.database_of(op)
        self.world.send(client.number, database, body, op, partial(self._has_resent, client), sequences)
        if client.number in self.world.pending:
            self.world.pending[client.number].earlier = before.turns

    def _has_resent(self, client: Client, reply: Reply, pending: Pending) -> None:
        assert client.sent is not None
        if self._has_more_results(client, partial(self._has_resent, client), reply, pending):
            return
        op, _, before, first = client.sent
        if reply["ok"] != 1.0 and reply["code"] in ENDED and not pending.events:
            return
        client.sent = None
        if first is not None and first["ok"] == 1.0 and "writeErrors" not in first and not first.get("nErrors"):
            if pending.events:
                raise Finding("retry", f"{op} was done again: {pending.events}")
            for name in ("n", "nModified", "value", "upserted", *bulks.TOTALS):
                if first.get(name) != reply.get(name):
                    raise Finding("retry", f"{op} was first answered {first}, then {reply}")
            return
        pending.turns = before.turns + pending.turns
        self._explain_write(pending, reply)

    def _has_changed_catalog(self, reply: Reply, pending: Pending) -> None:
        if not pending.turns:
            if reply["ok"] != 1.0 and reply["code"] in ENDED:
                return
            raise Finding("catalog", f"{pending.op} was refused: {reply}")
        catalog_changes.explain(pending.op, pending, reply, self.world.states)

    # Transactions.

    def _fields(self, client: Client) -> Document:
        return {"lsid": client.lsid, "txnNumber": Int64(client.transaction_number), "autocommit": False}

    def _start_statement(self, client: Client, op: Document) -> None:
        inner, world = op["op"], self.world
        fields: Document = {}
        if not client.transactions:
            client.transaction_number += 1
            fields["startTransaction"] = True
            client.transactions = [
                ModelTransaction(world.state, world.clock.monotonic_ms(), world.now, len(world.attempted))
            ]
        database = reads.split(inner["ns"])[0]
        is_read = inner["do"] in reads.READS
        if inner["do"] in CREATES:
            body, sequences = catalog_changes.body_of(inner), {}
        else:
            body, sequences = (reads.body_of(inner), {}) if is_read else writes.body_of(inner)
        if not is_read:
            for transaction in client.transactions:
                transaction.namespaces.add(inner["ns"])
        body |= {**fields, **self._fields(client)}
        finish = partial(self._has_stated, client, inner)
        op = {**op, "calm": inner["calm"], "first": bool(fields), "documents": []}
        world.send(client.number, database, body, op, finish, sequences)

    def _checked(self, client: Client, check: Callable[[TransactionCheck], None]) -> None:
        """Leave the snapshots of a client's transaction with which a reply is explained. Raises `Finding`."""
        others = [item.transactions[0] for item in self.clients if item.transactions and item is not client]
        others += self.failed_commits
        attempted = self.world.attempted[client.transactions[0].attempted_from :]
        explained, failure = [], None
        for transaction in client.transactions:
            try:
                check(TransactionCheck(transaction, attempted, others))
            except Finding as finding:
                failure = finding
            else:
                explained.append(transaction)
        if not explained and failure is not None:
            raise failure
        client.transactions = explained

    def _has_stated(self, client: Client, inner: Document, reply: Reply, pending: Pending) -> None:
        if pending.op["first"]:
            (first,) = client.transactions
            states = self.world.states[first.since :]
            client.transactions = [
                replace(
                    first,
                    snapshot=state,
                    since=first.since + number,
                    namespaces=set(first.namespaces),
                    changes=[],
                    created=[],
                )
                for number, state in enumerate(states)
            ]
        documents = pending.op["documents"]
        if reply["ok"] == 1.0 and "cursor" in reply:
            cursor = reply["cursor"]
            documents += cursor.get("firstBatch", cursor.get("nextBatch", ()))
            if cursor["id"]:
                op = {**pending.op, "first": False}
                body = self._more_of(cursor, inner.get("batch")) | self._fields(client)
                finish = partial(self._has_stated, client, inner)
                self.world.send(client.number, reads.split(inner["ns"])[0], body, op, finish)
                return
        if reply["ok"] != 1.0 or "writeErrors" in reply:
            error = reply if reply["ok"] != 1.0 else reply["writeErrors"][0]
            now_ms = self.world.clock.monotonic_ms()
            self._checked(client, lambda check: check.failed(inner, error, now_ms))
            client.transactions = []
        else:
            self._checked(client, lambda check: check.statement(inner, reply, documents))

    def _start_commit(self, client: Client, op: Document) -> None:
        if client.transactions:
            name = "commitTransaction" if op["do"] == "commit" else "abortTransaction"
            body = {name: 1, **self._fields(client)}
            self.world.send(client.number, "admin", body, op, partial(self._has_ended, client))

    _start_abort = _start_commit

    def _has_ended(self, client: Client, reply: Reply, pending: Pending) -> None:
        now_ms = self.world.clock.monotonic_ms()
        if reply["ok"] != 1.0:
            self._checked(client, lambda check: check.failed(pending.op, reply, now_ms))
            self.failed_commits += client.transactions[:1]
        elif pending.op["do"] == "commit":
            self._checked(client, lambda check: check.committed(pending.events))
        elif pending.events:
            raise Finding("transaction", f"an abort has made {pending.events}")
        client.transactions = []

    # The end.

    def end(self) -> None:
        """Let everything end that has begun, read the streams to their ends, and compare what is stored."""
        for _ in range(3):
            self._settle()
            for client in self.clients:
                if client.transactions and client.number not in self.world.pending:
                    self._start_commit(client, {"do": "abort", "calm": True})
            self._settle()
        for client in self.clients:
            while client.number not in self.world.pending and client.stream is not None and client.stream.cursor:
                self._do_start(client.number, {"do": "next", "size": None})
                self._settle()
        self.compare()

    def _settle(self) -> None:
        """Take every step that is left, but for beginning anything."""
        order = Random(0)
        for _ in range(20_000):
            clients = list(self.world.pending)
            steps: list[Step] = [
                *[("resume", number, 1) for number in clients],
                *[("run", number) for number in clients],
                *[("ask", number, False) for number in clients],
            ]
            steps += [("step_job",), ("run_job",), ("prepare",), ("sync",), ("publish",)]
            possible = list(filter(self.is_possible, steps))
            step = order.choice(possible) if possible else None
            if step is None:
                phases = [pending.phase for pending in self.world.pending.values()]
                job = self.world.job
                if any(phase in ("queued", "writing") for phase in phases) or (job is not None and job.is_queued):
                    step = ("begin",)
                else:
                    return
            self.take(step)
        left = [(pending.op, pending.phase) for pending in self.world.pending.values()]
        raise Finding("end", f"it does not end: {left}")

    def compare(self) -> None:
        """Raise `Finding` where what is stored is not what the model has."""
        world = self.world
        for namespace in sorted(world.state):
            is_view = collection_of(world.state, namespace) is None and not is_series(world.state, namespace)
            if is_view or ".system." in namespace:
                continue
            hint = None if is_series(world.state, namespace) else {"$natural": 1}
            for op in (
                {"do": "find", "ns": namespace, "filter": {}, "hint": hint, "calm": True},
                {"do": "count", "ns": namespace, "filter": {}, "calm": True},
                {"do": "listIndexes", "ns": namespace, "calm": True},
                {"do": "listCollections", "ns": namespace, "calm": True},
            ):
                finish = partial(self._has_compared, [])
                world.send(READER, reads.split(namespace)[0], reads.body_of(op), op, finish)

    def _has_compared(self, documents: list[Document], reply: Reply, pending: Pending) -> None:
        """Read on to the end of the cursor, and check the answer."""
        cursor = reply.get("cursor", {"id": 0})
        documents += cursor.get("firstBatch", cursor.get("nextBatch", ()))
        if cursor["id"]:
            database, finish = reads.split(cursor["ns"])[0], partial(self._has_compared, documents)
            self.world.send(READER, database, self._more_of(cursor, None), pending.op, finish)
        else:
            self._explain_read(pending.op, reply, documents, self.world.now, is_one=True)
