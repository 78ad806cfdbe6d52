"""The console in headless Chromium: a person's paths, by mouse and by keyboard, and the accessibility tree."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest

import headrace
from headrace.cli.console.application import ConsoleServer
from headrace.cli.console.tailing import TailStream
from tests.console.chromium import PROGRAM, Page, chromium

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium: apt-get install chromium"),
]
SCRIPT = "<img src=x onerror=document.body.dataset.owned=1><script>document.body.dataset.owned=1</script>"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(opened: Page, console: ConsoleServer) -> Iterator[Page]:
    """A page that has opened the console; at the end it has had no error, and each control has a name."""
    opened.problems.clear()
    console._sessions.base._answers.clear()  # of the test before
    opened.open(console.address)
    opened.shows("live: 0 events")
    yield opened
    assert opened.unnamed() == []
    assert opened.problems == []
    opened.open("about:blank")


@pytest.fixture
def orders(client: Any) -> Any:
    client.shop.create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
    client.shop.orders.insert_many([{"_id": number, "qty": number % 7} for number in range(50)])
    return client.shop.orders


def view(page: Page, name: str) -> None:
    page.click(f"nav a[href='#{name}']")
    page.appears(f"nav a[href='#{name}'][aria-current=page]")


def choose(page: Page, collection: str) -> None:
    """Click a collection in the table."""
    links = "[...document.querySelectorAll('td a')]"
    page.run(f"{links}.find((link) => link.textContent === {json.dumps(collection)}).id = 'chosen'")
    page.click("#chosen")


def test_a_person_follows_changes_pauses_copies_a_token_and_resumes_from_it(orders: Any, page: Page) -> None:
    page.type("[name=ns]", "shop.orders")
    page.click("button[type=submit]")
    page.shows("live: 0 events")
    orders.update_one({"_id": 1}, {"$set": {"qty": 9}})
    page.shows("1 -> 9")
    page.click(".toggle")
    page.shows("Before")
    assert page.run("document.querySelector('.toggle').getAttribute('aria-expanded')") == "true"
    token = page.run("[...document.querySelectorAll('.details pre')].at(-1).textContent")
    assert "_data" in json.loads(token)
    page.run("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }; 1")
    page.click("button[aria-label^='Copy the token of update']")
    assert page.until("window.copied") == token
    page.click(".bar button[aria-pressed=false]")
    orders.delete_one({"_id": 2})
    page.shows("paused, 1 waiting")
    page.appears(".events > li", 1)
    assert page.run("document.querySelectorAll('.events > li').length") == 1
    page.click(".bar button[aria-pressed=true]")
    page.appears(".operation.delete")
    page.click("li:last-child button[aria-label^='Follow from after update']")
    page.shows("live: 1 events")
    assert page.run("document.querySelectorAll('.events > li').length") == 1


def test_a_page_is_live_once_the_server_has_opened_its_stream(
    orders: Any, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, may_open = TailStream._read, threading.Event()

    def read_later(stream: TailStream) -> None:
        may_open.wait(60)
        read(stream)

    monkeypatch.setattr(TailStream, "_read", read_later)
    page.run(
        "window.EventSource = class extends EventSource { constructor(address) {"
        "super(address); this.addEventListener('open', () => { window.answered = true; }); } }; 1"
    )
    page.type("[name=ns]", "shop.orders")
    page.press("Enter")
    page.until("window.answered")
    page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
    assert page.run("document.body.innerText.includes('connecting')")
    may_open.set()
    page.shows("live: 0 events")
    orders.delete_one({"_id": 1})
    page.appears(".operation.delete")


def test_a_filter_and_a_wrong_one(orders: Any, page: Page) -> None:
    page.type("[name=filter]", "{")
    page.press("Enter")
    page.shows("the filter is not JSON")
    page.problems.clear()  # the browser logs the answer 400
    page.type("[name=filter]", '{"operationType": "delete"}')
    page.press("Enter")
    page.shows("live: 0 events")
    orders.update_one({"_id": 1}, {"$set": {"qty": 9}})
    orders.delete_one({"_id": 1})
    page.shows("live: 1 events")


def test_a_name_that_is_a_script_stays_text(page: Page, client: Any) -> None:
    client.shop[SCRIPT].insert_one({"_id": SCRIPT, SCRIPT: SCRIPT})
    page.appears(".events > li")
    page.click(".toggle")
    view(page, "collections")
    page.shows(f"shop.{SCRIPT}")
    choose(page, f"shop.{SCRIPT}")
    page.appears(".documents pre")
    assert SCRIPT in page.run("document.querySelector('.documents pre').textContent").replace('\\"', '"')
    page.click("#explain")
    page.shows("COLLSCAN")
    assert page.run("document.body.dataset.owned ?? 'no'") == "no"
    assert page.run("document.querySelectorAll('main img, main script').length") == 0


def test_a_person_asks_a_collection_and_looks_at_the_plan(orders: Any, page: Page) -> None:
    view(page, "collections")
    page.shows("shop.orders")
    choose(page, "shop.orders")
    page.appears(".documents pre", 20)
    page.click("section .bar button")
    page.shows("Documents 21 to 40")
    page.type("[name=filter]", '{"qty": 20}')
    page.press("Enter")
    page.shows("No documents")
    page.click("#explain")
    page.shows("an index on the filter's fields helps")
    page.appears(".stage.scan")
    assert page.unnamed() == []


def test_the_figures_are_plotted_in_both_colour_schemes_and_on_a_telephone(
    page: Page, console: ConsoleServer, orders: Any
) -> None:
    view(page, "server")
    page.appears("#now dl")
    page.appears(".plot canvas", 5)
    assert page.unnamed() == []
    light = page.run("getComputedStyle(document.body).backgroundColor")
    for name in ("changes", "collections", "server", "streams", "slow", "jobs"):
        page.open("about:blank")
        page.open(f"http://127.0.0.1:{console.port}/#{name}", 390, 844, "dark")
        page.appears(f"nav a[href='#{name}'][aria-current=page]")
        page.appears("main > :nth-child(2)")
        assert page.run("document.documentElement.scrollWidth") <= 390, name
        assert page.unnamed() == [], name
    assert page.run("getComputedStyle(document.body).backgroundColor") != light


def test_open_streams_their_lag_and_the_oplog_are_shown(orders: Any, page: Page, client: Any) -> None:
    begin = client.admin.command("hello")["operationTime"]
    orders.insert_many([{"_id": number} for number in range(100, 120)])
    with orders.watch(max_await_time_ms=1), orders.watch(start_at_operation_time=begin, batch_size=1) as behind:
        behind.next()
        view(page, "streams")
        page.until("document.querySelector('#streams table')?.innerText.includes('shop.orders')")
        page.shows("Lasts at this rate")
        page.shows("its client has not asked for")
        page.until("document.querySelector('.legend').innerText.includes('shop.orders')")
        assert page.unnamed() == []


def test_slow_queries_and_jobs(orders: Any, page: Page, client: Any) -> None:
    client.shop.command("profile", 2)
    list(orders.find({"qty": 100}))
    client.shop.command("profile", 0)
    view(page, "slow")
    page.shows('{"qty": 1}')
    assert page.unnamed() == []
    view(page, "jobs")
    page.shows("--job FILE")


def test_every_view_is_reached_by_the_keyboard(page: Page) -> None:
    page.run("document.activeElement.blur()")
    reached = []
    for _ in range(7):
        page.press("Tab")
        reached.append(page.run("document.activeElement.textContent"))
    assert reached == ["Skip to the content", "Changes", "Collections", "Server", "Streams", "Slow queries", "Jobs"]
    page.press("Enter")
    page.appears("nav a[href='#jobs'][aria-current=page]")
    assert page.run("document.activeElement.id") == "main"


def test_10000_events_a_second_do_not_freeze_the_page(page: Page, client: Any) -> None:
    """The page goes on drawing frames while bulk inserts run, and keeps 500 rows."""
    page.shows("live")
    page.run(
        "window.frames = 0; const frame = () => { window.frames += 1; requestAnimationFrame(frame); };"
        "requestAnimationFrame(frame); 1"
    )
    numbers = itertools.count()

    def write() -> None:
        for _ in range(20):
            client.shop.many.insert_many([{"_id": next(numbers), "text": "x" * 200} for _ in range(1000)])

    writer = threading.Thread(target=write)
    writer.start()
    page.until("document.querySelector('#state').textContent.includes('20,000 events')")
    writer.join()
    assert page.run("document.querySelectorAll('.events > li').length") <= 500
    page.shows("not shown, too many at a time")
    assert page.run("window.frames") > 10


def test_a_person_signs_in_and_out(opened: Page) -> None:
    with headrace.Server(auth=True) as server:
        uri = server.uri.replace("?replicaSet=rs0", "")
        with pymongo.MongoClient[dict[str, Any]](uri) as client:
            client.admin.command("createUser", "ada", pwd="lovelace", roles=["root"])
        console = ConsoleServer(uri)
        thread = console.start()
        opened.open(console.address)
        opened.shows("wants a user")
        assert opened.unnamed() == []
        opened.type("[name=user]", "ada")
        opened.type("[name=password]", "wrong")
        opened.press("Enter")
        opened.shows("error 18")
        opened.type("[name=password]", "lovelace")
        opened.press("Enter")
        opened.shows("Sign out")
        opened.shows("live")
        assert opened.unnamed() == []
        opened.click("header button")
        opened.shows("wants a user")
        assert opened.run("localStorage.length + sessionStorage.length") == 0 and opened.run("document.cookie") == ""
        opened.open("about:blank")
        console.stop()
        thread.join(10)
