"""Messages for many browsers. A thread appends to a log; each browser's event stream reads the log at intervals.

The log keeps the newest messages only, so a slow browser misses some and is told how many events they had.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, Final, NamedTuple

KEPT_COUNT: Final = 8
"""The messages that the log keeps: two seconds of a busy change stream."""
LOOK_SECONDS: Final = 0.1
KEEP_ALIVE_SECONDS: Final = 15.0


class _Message(NamedTuple):
    number: int
    text: bytes
    event_count: int
    """The change events of all messages up to this one."""


class MessageReader:
    """One browser's reading of a log, from the next message on, until `aclose`."""

    def __init__(self, log: MessageLog, last: _Message) -> None:
        self._log, self._messages = log, log.after(last)
        self._is_open = True
        log.reader_count += 1

    def __aiter__(self) -> MessageReader:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._messages)
        except StopAsyncIteration:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """End the reading, also one that has not begun."""
        if self._is_open:
            self._is_open = False
            self._log.reader_count -= 1
        await self._messages.aclose()


class MessageLog:
    """The newest messages of one source. One thread appends to it; the event loop reads it."""

    def __init__(self) -> None:
        self._kept: deque[_Message] = deque([_Message(0, b"", 0)], maxlen=KEPT_COUNT + 1)
        self.reader_count = 0
        """The number of browsers that read the log."""
        self.is_ended = False
        """Whether no more messages come. Readers end after the last one."""

    def publish(self, name: str, content: Any, event_count: int = 0) -> None:
        """Encode a message once, for all readers."""
        last = self._kept[-1]
        self._kept.append(_Message(last.number + 1, event_text(name, content), last.event_count + event_count))

    def read(self) -> MessageReader:
        """Return a reader of the messages from now on."""
        return MessageReader(self, self._kept[-1])

    async def after(self, last: _Message) -> AsyncGenerator[bytes, None]:
        """Yield the messages after `last` as server-sent events, after notices of missed events, until the log ends."""
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        while True:
            is_ended = self.is_ended
            kept = self._kept.copy()
            if missed := kept[0].event_count - last.event_count if kept[0].number > last.number else 0:
                yield event_text("missed", {"count": missed})
            for message in kept:
                if message.number > max(last.number, kept[0].number):
                    yield message.text
                    sent_at = loop.time()
            last = kept[-1]
            if is_ended:
                return
            if loop.time() - sent_at > KEEP_ALIVE_SECONDS:
                yield b": still here\n\n"
                sent_at = loop.time()
            await asyncio.sleep(LOOK_SECONDS)


def event_text(name: str, content: Any) -> bytes:
    """Encode a server-sent event (HTML Standard, 9.2.6); the JSON has no line breaks."""
    return f"event: {name}\ndata: {json.dumps(content, ensure_ascii=True)}\n\n".encode()
