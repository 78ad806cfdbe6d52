"""Server-sent events from FastAPI: a browser's EventSource follows a collection, and resumes by itself.

    uvicorn examples.server_sent_events:app

The event's id is its token. A browser that was cut off sends the last one back (`Last-Event-ID`), and misses nothing.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bson.json_util import dumps
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

import headrace


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the store with the application."""
    async with headrace.open_async(getattr(app.state, "path", None)) as store:
        app.state.orders = store["shop"]["orders"]
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders")
async def create(order: dict[str, Any]) -> dict[str, str]:
    """Insert an order."""
    result = await app.state.orders.insert_one(order)
    return {"id": str(result.inserted_id)}


@app.get("/orders/events")
async def events(request: Request, count: int | None = None) -> StreamingResponse:
    """Follow the orders; `count`: end behind so many events."""
    last = request.headers.get("last-event-id")
    stream = await app.state.orders.watch(resume_after={"_data": last} if last else None, full_document="updateLookup")
    return StreamingResponse(lines_of(stream, count), media_type="text/event-stream")


async def lines_of(stream: Any, count: int | None) -> AsyncIterator[str]:
    """The events of a stream as lines of `text/event-stream`; a comment every 15 s shows that it lives."""
    sent = 0
    try:
        while count is None or sent < count:
            try:
                event = await stream.next(timeout=15)
            except headrace.Timeout:
                yield ": alive\n\n"
                continue
            sent += 1
            data = json.loads(dumps(event.full_document))
            yield f"id: {event.resume_token['_data']}\nevent: {event.operation_type}\ndata: {json.dumps(data)}\n\n"
    finally:
        await stream.close()
