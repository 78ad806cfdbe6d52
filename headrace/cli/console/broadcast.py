"""Messages for many browsers. Each browser has a bounded queue, so a slow browser loses messages.

A thread feeds an `EventChannel`; the event loop reads it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

QUEUE_MAX: Final = 8
"""The most messages that wait for one browser: two seconds of a busy change stream."""
KEEP_ALIVE_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A message as it is sent, and the number of change events in it."""

    text: bytes
    event_count: int = 0


@dataclass(eq=False, slots=True)
class Subscription:
    """The queue of one browser."""

    queue: asyncio.Queue[Broadcast | None] = field(default_factory=lambda: asyncio.Queue(QUEUE_MAX))
    missed_count: int = 0
    """Events that the full queue dropped since the browser was last told."""
    is_ended: bool = False

    def offer(self, message: Broadcast) -> None:
        """Queue a message; if the queue is full, count its events as missed."""
        try:
            self.queue.put_nowait(message)
        except asyncio.QueueFull:
            self.missed_count += message.event_count

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield the messages as server-sent events, after a notice of missed events, until the channel ends."""
        while True:
            try:
                message = await asyncio.wait_for(self.queue.get(), KEEP_ALIVE_SECONDS)
            except TimeoutError:
                yield b": still here\n\n"
                continue
            finally:
                if self.is_ended and self.queue.empty():
                    self.offer_end()
            if message is None:
                return
            if self.missed_count:
                missed, self.missed_count = self.missed_count, 0
                yield event_text("missed", {"count": missed})
            yield message.text

    def offer_end(self) -> None:
        """End the subscription after its queued messages."""
        self.is_ended = True
        if not self.queue.full():
            self.queue.put_nowait(None)


class EventChannel:
    """The subscriptions of one source of messages."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._subscriptions: set[Subscription] = set()
        self._is_ended = False

    @property
    def reader_count(self) -> int:
        """The number of subscriptions. Safe from any thread."""
        return len(self._subscriptions)

    def subscribe(self) -> Subscription:
        """Return a new subscription. Call it on the loop."""
        subscription = Subscription()
        self._subscriptions.add(subscription)
        if self._is_ended:
            subscription.offer_end()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription. Call it on the loop."""
        self._subscriptions.discard(subscription)

    def publish(self, name: str, content: Any, event_count: int = 0) -> None:
        """Encode a message once and send it to all subscriptions. Safe from any thread."""
        message = Broadcast(event_text(name, content), event_count)

        def offer() -> None:
            for subscription in self._subscriptions:
                subscription.offer(message)

        self._call(offer)

    def end(self) -> None:
        """End all subscriptions after their queued messages. Safe from any thread."""

        def end() -> None:
            self._is_ended = True
            for subscription in self._subscriptions:
                subscription.offer_end()

        self._call(end)

    def _call(self, function: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)


def event_text(name: str, content: Any) -> bytes:
    """Encode a server-sent event (HTML Standard, 9.2.6); the JSON has no line breaks."""
    return f"event: {name}\ndata: {json.dumps(content, ensure_ascii=True)}\n\n".encode()
