"""A scheduler's job store, caches, sessions of a web framework, a message queue and another object mapper."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pymongo
import pytest
from apscheduler.jobstores.base import ConflictingIdError
from apscheduler.jobstores.mongodb import MongoDBJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from cachelib import MongoDbCache
from flask import Flask, session
from flask_session import Session
from kombu import Connection, Exchange, Queue
from odmantic import Field, Model, Reference, SyncEngine
from odmantic.exceptions import DuplicateKeyError

pytestmark = pytest.mark.long

Client = pymongo.MongoClient[dict[str, Any]]
ran: queue.Queue[str] = queue.Queue()


def work(text: str) -> None:
    """A job, which is stored by its name."""
    ran.put(text)


@pytest.fixture
def client(uri: str) -> Iterator[Client]:
    with pymongo.MongoClient(uri) as client:
        yield client


def test_apscheduler_runs_jobs_from_its_store(uri: str) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)

    def scheduler() -> BackgroundScheduler:
        return BackgroundScheduler(jobstores={"default": MongoDBJobStore(database="jobs", host=uri)})

    first = scheduler()
    first.start(paused=True)
    first.add_job(work, "date", run_date=later, args=["later"], id="later", misfire_grace_time=None)
    first.add_job(work, args=["now"], id="now", misfire_grace_time=None)
    with pytest.raises(ConflictingIdError):
        first.add_job(work, args=["again"], id="now")
    first.shutdown()
    second = scheduler()  # another process would find the same
    second.start()
    assert ran.get(timeout=60) == "now"
    assert [job.id for job in second.get_jobs()] == ["later"]
    second.reschedule_job("later", trigger="interval", hours=2)
    second.pause_job("later")
    assert second.get_job("later").next_run_time is None
    second.modify_job("later", next_run_time=datetime.now(UTC))
    assert ran.get(timeout=60) == "later"
    second.remove_job("later")
    second.shutdown()
    with pymongo.MongoClient(uri) as client:
        assert client.jobs.jobs.count_documents({}) == 0
        assert "next_run_time_1" in client.jobs.jobs.index_information()


def test_cachelib_s_cache(client: Client) -> None:
    cache = MongoDbCache(client=client, db="cache", collection="c")
    assert cache.set("a", {"x": 1}) and cache.get("a") == {"x": 1}
    assert not cache.add("a", 2) and cache.add("b", 2) and cache.get_many("a", "b", "c") == [{"x": 1}, 2, None]
    assert sorted(cache.set_many({"d": 1, "e": 2})) == ["d", "e"] and cache.inc("d", 5) == 6 and cache.dec("d") == 5
    assert cache.delete("d") and not cache.has("d") and sorted(cache.delete_many("a", "e")) == ["a", "e"]
    cache.set("old", 1)
    client.cache.c.update_one({"id": {"$regex": "old$"}}, {"$set": {"expiration": datetime(2000, 1, 1)}})
    assert cache.get("old") is None
    assert cache.clear() and cache.get("b") is None


def test_flask_keeps_sessions(client: Client) -> None:
    app = Flask("app")
    app.config.update(
        SESSION_TYPE="mongodb", SESSION_MONGODB=client, SESSION_MONGODB_DB="web", SESSION_MONGODB_COLLECT="sessions"
    )
    Session(app)

    @app.get("/count")
    def count() -> str:
        session["n"] = session.get("n", 0) + 1
        return str(session["n"])

    @app.get("/leave")
    def leave() -> str:
        session.clear()
        return ""

    ann, bob = app.test_client(), app.test_client()
    assert [ann.get("/count").text, ann.get("/count").text, bob.get("/count").text] == ["1", "2", "1"]
    assert client.web.sessions.count_documents({}) == 2
    assert client.web.sessions.index_information()["expiration_1"]["expireAfterSeconds"] == 0
    ann.get("/leave")
    assert client.web.sessions.count_documents({}) == 1 and ann.get("/count").text == "1"


def test_kombu_s_transport(uri: str) -> None:
    bodies: list[Any] = []

    def received(body: Any, message: Any) -> None:
        bodies.append(body)
        message.ack()

    with Connection(uri.replace("/?", "/kombu?")) as connection:
        exchange = Exchange("media", "direct")
        videos = Queue("video", exchange=exchange, routing_key="video")
        with connection.Producer() as producer:
            for number in range(3):
                producer.publish({"n": number}, exchange=exchange, routing_key="video", declare=[videos])
        with connection.Consumer(videos, callbacks=[received]):
            for _ in range(3):
                connection.drain_events(timeout=60)
        assert bodies == [{"n": 0}, {"n": 1}, {"n": 2}]
        everybody = Exchange("all", "fanout")  # its messages are in a capped collection, read by a tailable cursor
        with connection.Consumer(Queue("one", exchange=everybody), callbacks=[received]):
            with connection.Producer() as producer:
                producer.publish({"n": 7}, exchange=everybody)
            connection.drain_events(timeout=60)
        assert bodies[-1] == {"n": 7}
        simple = connection.SimpleQueue("simple")
        simple.put({"a": 1})
        assert simple.qsize() == 1
        simple.get(timeout=60).ack()
        assert simple.qsize() == 0
        simple.close()


def test_celery_s_broker_and_results(uri: str) -> None:
    from celery import Celery, group
    from celery.contrib.testing.worker import start_worker

    app = Celery("app", broker=uri.replace("/?", "/broker?"), backend=uri.replace("/?", "/results?"))

    @app.task(name="add")  # type: ignore[untyped-decorator]
    def add(left: int, right: int) -> int:
        return left + right

    with start_worker(app, perform_ping_check=False, loglevel="ERROR"):
        assert add.delay(2, 3).get(timeout=60) == 5
        assert group(add.s(number, number) for number in range(3))().get(timeout=60) == [0, 2, 4]


class Publisher(Model):
    name: str = Field(unique=True)
    founded: int = Field(index=True)


class Book(Model):
    title: str
    publisher: Publisher = Reference()


def test_odmantic_s_references(client: Client) -> None:
    engine = SyncEngine(client=client, database="books")
    engine.configure_database([Publisher, Book])
    press = Publisher(name="Press", founded=1800)
    engine.save(Book(title="t", publisher=press))
    book = engine.find_one(Book, Book.title == "t")
    assert book is not None and book.publisher.name == "Press"
    assert engine.find_one(Book, Book.publisher == press.id) == book
    book.title = "u"
    engine.save(book)
    assert engine.count(Book, Book.title == "u") == 1
    with pytest.raises(DuplicateKeyError):
        engine.save(Publisher(name="Press", founded=1900))
    with engine.transaction() as transaction:
        transaction.save(Publisher(name="Other", founded=1700))
    oldest_first = [item.name for item in engine.find(Publisher, sort=Publisher.founded)]
    assert oldest_first == ["Other", "Press"]
    engine.delete(book)
    assert engine.count(Book) == 0


def test_a_queue_on_a_tailable_cursor(client: Client) -> None:
    messages = client.queue.create_collection("messages", capped=True, size=1 << 20, max=1000)
    messages.insert_one({"_id": -1})
    count, received = 50, [queue.Queue[Any]() for _ in range(3)]
    opened = threading.Barrier(4)

    def consume(numbers: queue.Queue[Any]) -> None:
        tailing = messages.find({"_id": {"$gte": 0}}, cursor_type=pymongo.CursorType.TAILABLE_AWAIT)
        with tailing.max_await_time_ms(60_000) as cursor:
            opened.wait(timeout=60)
            while cursor.alive:
                for message in cursor:
                    numbers.put(message["_id"])
                    if message["_id"] == count - 1:
                        return

    consumers = [threading.Thread(target=consume, args=(numbers,), daemon=True) for numbers in received]
    for consumer in consumers:
        consumer.start()
    opened.wait(timeout=60)
    for number in range(count):
        messages.insert_one({"_id": number})
    for consumer, numbers in zip(consumers, received):
        consumer.join(timeout=60)
        assert [numbers.get_nowait() for _ in range(count)] == list(range(count))
