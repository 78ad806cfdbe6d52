"""The loops that make the load: as little as possible between a reply and the next request.

Every reply is looked at: one without `ok: 1`, or with `writeErrors`, ends the measurement.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from messages import ERRORS, OK, reply_document
from target import Target, receive


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run gave; `cpu_us` is the server's, for each operation."""

    per_second: float
    cpu_us: float


class Channel:
    """One connection in the loop: bytes of the reply that has begun, and when its request was sent."""

    __slots__ = ("data", "sent", "socket")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.data = b""
        self.sent = 0.0

    def send(self, message: bytes) -> None:
        self.sent = time.perf_counter()
        self.socket.sendall(message)

    def take(self) -> bool:
        """Read what is there; True when the reply is complete (it stays in `data` until the next `take`)."""
        pending = self.data
        if len(pending) >= 4 and len(pending) >= int.from_bytes(pending[:4], "little"):
            pending = b""
        received = self.socket.recv(1 << 18)
        if not received:
            raise ConnectionError("the server closed the connection")
        self.data = data = pending + received if pending else received
        return len(data) >= 4 and len(data) >= int.from_bytes(data[:4], "little")


def check(reply: bytes) -> None:
    """Raise RuntimeError for a reply that tells of an error."""
    if OK not in reply or ERRORS in reply:
        raise RuntimeError(f"the server refused: {reply_document(reply)}")


def run_each(target: Target, connections: int, messages: Sequence[bytes]) -> Measured:
    """Send all messages over so many connections, each sending its next one when its reply is there."""
    sockets = [target.connect() for _ in range(connections)]
    try:
        cpu, start = target.cpu_seconds(), time.perf_counter()
        if connections == 1:
            _one_after_the_other(sockets[0], messages)
        else:
            _side_by_side(sockets, messages)
        elapsed = time.perf_counter() - start
        return Measured(len(messages) / elapsed, (target.cpu_seconds() - cpu) / len(messages) * 1e6)
    finally:
        for connection in sockets:
            connection.close()


def _one_after_the_other(connection: socket.socket, messages: Sequence[bytes]) -> None:
    for message in messages:
        connection.sendall(message)
        check(receive(connection))


def _side_by_side(sockets: Sequence[socket.socket], messages: Sequence[bytes]) -> None:
    waiting = deque(messages)
    with selectors.DefaultSelector() as selector:
        for connection in sockets:
            channel = Channel(connection)
            selector.register(connection, selectors.EVENT_READ, channel)
            if waiting:
                channel.send(waiting.popleft())
        left = len(messages)
        while left:
            for key, _ in selector.select():
                channel = key.data
                if channel.take():
                    check(channel.data)
                    left -= 1
                    if waiting:
                        channel.send(waiting.popleft())


class Watchers:
    """Change streams, one connection each; every reply is followed by the next getMore when it is asked for."""

    def __init__(self, target: Target, count: int, opening: bytes, more_of: Callable[[int], bytes]) -> None:
        self._selector = selectors.DefaultSelector()
        self._asking: dict[Channel, bytes] = {}
        self._more_of = more_of
        self._events = 0
        for _ in range(count):
            self.add(target, opening)

    def add(self, target: Target, opening: bytes) -> None:
        """One more watcher, on a connection of its own."""
        self.take(target.connect(), opening, self._more_of)

    def take(self, connection: socket.socket, opening: bytes, more_of: Callable[[int], bytes]) -> None:
        """One more watcher, on this connection."""
        connection.sendall(opening)
        reply = receive(connection)
        check(reply)
        channel = Channel(connection)
        self._selector.register(connection, selectors.EVENT_READ, channel)
        self._asking[channel] = more_of(reply_document(reply)["cursor"]["id"])
        channel.send(self._asking[channel])

    def wait_for_all(self) -> None:
        """Until each has been brought one event; each asks for the next at once. Empty batches are asked anew."""
        left = len(self._asking)
        while left:
            for channel in self.ready(None):
                left -= b"operationType" in channel.data
                self.ask_again(channel)

    def wait_for_events(self, count: int) -> None:
        """Until each was brought `count` events since its opening on average; with 0, read what is there already."""
        while True:
            for channel in self.ready(None if count else 0.0):
                self._events += channel.data.count(b"\x02operationType\x00")
                self.ask_again(channel)
            if self._events >= count * len(self._asking):
                return

    @contextmanager
    def also(self, channel: Channel) -> Iterator[None]:
        """Let `ready` tell of one more channel, a writer's."""
        self._selector.register(channel.socket, selectors.EVENT_READ, channel)
        try:
            yield
        finally:
            self._selector.unregister(channel.socket)

    def ready(self, wait_seconds: float | None) -> list[Channel]:
        """The channels whose reply has become complete within the time."""
        channels = []
        for key, _ in self._selector.select(wait_seconds):
            if key.data.take():
                check(key.data.data)
                channels.append(key.data)
        return channels

    def ask_again(self, channel: Channel) -> None:
        channel.send(self._asking[channel])

    def close(self) -> None:
        self._selector.close()
        for channel in self._asking:
            channel.socket.close()
