"""The clients, and those steps of the simulation that open, read, stop and resume streams and tailable cursors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bson import Binary, Int64

from tests.simulation.language import Document
from tests.simulation.model import Finding
from tests.simulation.streams import Stream
from tests.simulation.tails import Tail
from tests.simulation.transactions import ModelTransaction
from tests.simulation.world import ENDED, Pending, Reply, World


class Client:
    """A client, its cursor, its transaction, its stream, and the write that it may send again."""

    def __init__(self, number: int, role: str) -> None:
        self.number = number
        self.role = role
        self.lsid = {"id": Binary(bytes(15) + bytes([number]), 4)}
        self.transaction_number = 0
        self.cursor: tuple[int, str, Document, list[Document], int] | None = None
        """Its id, name, the find, the documents so far, and the state it began in."""
        self.transactions: list[ModelTransaction] = []
        """The transaction that is open, once for each state that may be its snapshot."""
        self.stream: Stream | None = None
        self.tail: Tail | None = None
        self.sent: tuple[Document, int, Pending, Reply | None] | None = None
        """The last retryable write, its number, what it has done, and the reply, if there was one."""


class Watching:
    """The steps of streams and tailable cursors."""

    world: World
    clients: list[Client]

    def _look_at_parked(self, number: int) -> None:
        """A stream waits only where nothing is left to read."""
        pending = self.world.pending.get(number)
        if pending is not None and pending.phase == "parked":
            self._require_nothing(self.clients[number])

    @staticmethod
    def _require_nothing(client: Client) -> None:
        if client.stream is not None:
            client.stream.require_nothing()
        if client.tail is not None and client.tail.cursor:
            client.tail.require_nothing()

    # Tailable cursors.

    def _start_tail(self, client: Client, op: Document) -> None:
        client.tail = tail = Tail(self.world, op)
        self.world.send(client.number, "a", tail.body(), op, partial(self._has_tailed, client))

    def _has_tailed(self, client: Client, reply: Reply, pending: Pending) -> None:
        tail, states = client.tail, self.world.states[pending.since :]
        assert tail is not None
        if reply["ok"] != 1.0:
            tail.failed(reply, states)
        else:
            tail.begin(reply, states)

    def _start_tailNext(self, client: Client, op: Document) -> None:
        tail = client.tail
        if tail is None or not tail.cursor:
            return
        body = {"getMore": Int64(tail.cursor), "collection": "c"}
        if op["batch"]:
            body["batchSize"] = op["batch"]
        finish = partial(self._has_tailed_on, client, len(tail.inserted()))
        self.world.send(client.number, "a", body, op, finish)

    def _has_tailed_on(self, client: Client, due: int, reply: Reply, pending: Pending) -> None:
        tail = client.tail
        assert tail is not None
        if reply["ok"] != 1.0:
            tail.failed(reply, self.world.states[pending.since :])
            client.tail = None
        else:
            tail.take(reply, pending.op["batch"], due)

    # Streams.

    def _start_watch(self, client: Client, op: Document) -> None:
        self._stop(client)
        client.stream = Stream(self.world, op["spec"])
        self._open(client, {}, op, partial(self._has_opened, client, None))

    def _open(self, client: Client, options: Document, op: Document, finish: Callable[[Reply, Pending], None]) -> None:
        assert client.stream is not None
        body = client.stream.open_body(options, op["size"])
        self.world.send(client.number, client.stream.database, body, op, finish)

    def _stop(self, client: Client) -> None:
        stream = client.stream
        if stream is not None and stream.cursor:
            body = {"killCursors": stream.name, "cursors": [Int64(stream.cursor)]}
            self.world.send(client.number, stream.database, body, {"do": "stop", "calm": True}, _ignore)
            stream.cursor = 0

    def _start_resume(self, client: Client, op: Document) -> None:
        stream = client.stream
        if stream is None or not stream.token:
            return
        self._stop(client)
        options, place = stream.resume_options(op)
        self._open(client, options, op, partial(self._has_opened, client, (place, self._is_lost(stream))))

    def _is_lost(self, stream: Stream) -> bool:
        """Whether the oplog no longer has the place where a stream is resumed."""
        with self.world.store.reading() as view:
            oldest = view.oldest_position()
        assert oldest is not None
        return self.world.store.pruned_through >= 0 and stream.floor < oldest

    def _has_opened(self, client: Client, resumed: Any, reply: Reply, pending: Pending) -> None:
        stream = client.stream
        assert stream is not None
        if reply["ok"] != 1.0 and reply["code"] in ENDED:
            client.stream = None
            return
        if resumed is None:
            if reply["ok"] != 1.0:
                raise Finding("stream", f"{stream.spec} could not be opened: {reply}")
            stream.begin(reply)
            stream.take(reply, "firstBatch")
            return
        place, is_lost = resumed
        if reply.get("code") == 286 and "committed transaction" in reply["errmsg"]:
            is_lost = self.world.store.pruned_through >= 0  # the first entries of a transaction are gone, not the last
        has_lost = reply.get("code") == 286
        if has_lost != is_lost and not (has_lost and self._is_lost(stream)):  # it was pruned meanwhile
            raise Finding("stream", f"resumed at {stream.floor}, lost: {is_lost}, but: {reply}")
        if has_lost:
            client.stream = None
            return
        if reply["ok"] != 1.0:
            raise Finding("stream", f"{stream.spec} could not be resumed by {pending.op}: {reply}")
        stream.is_closed = False
        stream.place = place
        stream.text = ""
        stream.take(reply, "firstBatch")

    def _start_next(self, client: Client, op: Document) -> None:
        stream = client.stream
        if stream is None or not stream.cursor:
            return
        body: Document = {"getMore": Int64(stream.cursor), "collection": stream.name}
        if op["size"]:
            body["batchSize"] = op["size"]
        database = stream.spec["database"] or "admin"
        self.world.send(client.number, database, body, op, partial(self._has_next, client))

    def _has_next(self, client: Client, reply: Reply, pending: Pending) -> None:
        stream = client.stream
        assert stream is not None
        if reply.get("code") == 286:
            is_halved = "committed transaction" in reply["errmsg"]  # its first entries are gone, not its last
            if not is_halved and self.world.store.pruned_through < int(stream.token["_data"][2:18], 16):
                raise Finding("stream", f"286, but nothing after {stream.token} was pruned")
            client.stream = None
        elif reply["ok"] != 1.0 and reply["code"] in ENDED:
            stream.cursor = 0
        elif reply["ok"] != 1.0:
            raise Finding("stream", f"{stream.spec} has failed: {reply}")
        else:
            stream.take(reply, "nextBatch")


def _ignore(reply: Reply, pending: Pending) -> None:
    """Nothing is expected of the reply."""
