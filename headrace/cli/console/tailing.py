"""Change streams for browsers. Browsers that ask for the same stream share it; each stream has its own threads.

A batch goes out four times a second. It has the newest `SHOWN_MAX` events and the number of the others, so that 10,000
events a second cost a browser no more than 200.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pymongo.errors import PyMongoError

from headrace.cli.arguments import Failed
from headrace.cli.connection import Client, Document, failure, split_namespace
from headrace.cli.console.broadcast import MessageLog, MessageReader
from headrace.cli.tail.following import Follow
from headrace.cli.tail.lines import EventLines
from headrace.cli.tail.start import json_object, start_of
from headrace.cli.terminal import Painter, shortened, shown

BATCH_SECONDS: Final = 0.25
SHOWN_MAX: Final = 50
"""A batch shows this many events."""
TEXT_MAX: Final = 4_000
"""The page shows this many characters of a document or a changed field."""
CHANGES_MAX: Final = 50
STREAMS_MAX: Final = 32
"""The most change streams that one connection has open at a time."""


@dataclass(frozen=True, slots=True)
class TailQuery:
    """The stream that a browser asks for. Equal queries share a stream unless they begin in the past."""

    namespace: str = ""
    filter: str = ""
    start: str = ""

    def follow(self) -> Follow:
        """Return the stream to follow. Raises Failed for an invalid filter or position."""
        database, collection = split_namespace(self.namespace)
        pipeline = [{"$match": json_object(self.filter, "the filter")}] if self.filter else []
        start = start_of(self.start or None)
        return Follow(uri="", database=database, collection=collection, pipeline=pipeline, start=start)


class TailStream:
    """One open change stream and its readers. It ends with its last reader."""

    def __init__(self, client: Client, query: TailQuery) -> None:
        """Prepare the stream. Raises Failed for an invalid query."""
        self._client = client
        self._follow = query.follow()
        self.log = MessageLog()
        self._waiting: deque[Document] = deque(maxlen=SHOWN_MAX)
        self._count = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.is_open = False
        """Whether the server has opened the stream."""

    @property
    def is_ended(self) -> bool:
        """Whether the stream has failed or lost its last reader."""
        return self._ended.is_set()

    def start(self) -> None:
        """Start the threads. Call it after the first `read` of the log."""
        threading.Thread(target=self._read, daemon=True, name="console tail").start()
        threading.Thread(target=self._send_batches, daemon=True, name="console tail batches").start()

    def _read(self) -> None:
        try:
            events = self._follow.events(self._client)
            for event, _ in events:
                if not self.log.reader_count:
                    break
                if not self.is_open:
                    self.is_open = True
                    self.log.publish("opened", {})
                if event is not None:
                    with self._lock:
                        self._waiting.append(event)
                        self._count += 1
            events.close()
        except (PyMongoError, Failed) as error:
            self._send()
            failed = error if isinstance(error, Failed) else failure(error)
            self.log.publish("failed", {"error": str(failed)})
        finally:
            self._ended.set()
            self.log.is_ended = True

    def _send_batches(self) -> None:
        while not self._ended.wait(BATCH_SECONDS):
            self._send()

    def _send(self) -> None:
        with self._lock:
            events, count = list(self._waiting), self._count
            self._waiting.clear()
            self._count = 0
        if count:
            content = {"events": [shown_event(event) for event in events], "notShown": count - len(events)}
            self.log.publish("events", content, count)


@dataclass
class Tails:
    """The open streams of one connection. Use it on the event loop."""

    client: Client
    _streams: dict[TailQuery, TailStream] = field(default_factory=dict)
    _past: set[TailStream] = field(default_factory=set)

    def read(self, query: TailQuery) -> tuple[TailStream, MessageReader]:
        """Return the stream of a query, maybe newly opened, and its messages. Raises Failed, also if too many streams
        are open."""
        self._past = {stream for stream in self._past if not stream.is_ended}
        self._streams = {key: stream for key, stream in self._streams.items() if not stream.is_ended}
        stream = self._streams.get(query)
        if stream is not None and stream.log.reader_count:
            return stream, stream.log.read()
        if len(self._streams) + len(self._past) >= STREAMS_MAX:
            raise Failed(f"the console has {STREAMS_MAX} change streams open: close a page")
        stream = TailStream(self.client, query)
        messages = stream.log.read()
        if query.start:
            self._past.add(stream)
        else:
            self._streams[query] = stream
        stream.start()
        return stream, messages


def shown_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event for the page: its texts cut at `TEXT_MAX` characters, its resume token uncut."""
    lines = EventLines(Painter(enabled=False), None)
    changes = [
        {"sign": sign, "path": path, "text": shortened(text, TEXT_MAX)} for sign, path, text in lines.changes(event)
    ]
    namespace = event.get("ns") or {}
    wall: Any = event.get("wallTime")
    cluster = event.get("clusterTime")
    at = wall.timestamp() if hasattr(wall, "timestamp") else cluster.time if cluster is not None else None
    return {
        "operation": str(event.get("operationType", "?")),
        "namespace": ".".join(str(name) for name in namespace.values()),
        "key": _text(event.get("documentKey")),
        "at": at,
        "token": json.dumps({"_data": event["_id"]["_data"]}),
        "changes": changes[:CHANGES_MAX],
        "changesLeft": max(len(changes) - CHANGES_MAX, 0),
        "before": _text(event.get("fullDocumentBeforeChange")),
        "after": _text(event.get("fullDocument")),
        "description": _text(event.get("operationDescription")),
    }


def _text(value: Any) -> str:
    return "" if value is None else shortened(shown(value), TEXT_MAX)
