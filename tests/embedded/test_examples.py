"""The examples do what their heads say, and are short."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 80
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def example(name: str) -> Any:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) < LINES_MAX


def test_the_audit_log_has_what_was_there_before(tmp_path: Path) -> None:
    audit_log = example("audit_log")
    log = audit_log.main(str(tmp_path))
    assert [(line["what"], line["before"].get("balance"), line["after"].get("balance")) for line in log] == [
        ("insert", None, 100), ("update", 100, 70), ("delete", 70, None),
    ]  # fmt: skip
    assert len(audit_log.main(str(tmp_path))) == 6


def test_the_cache_is_read_again_after_a_change() -> None:
    assert example("cache_invalidation").main() == [2, 2, 2, 3, 2, 4]


def test_two_stores_are_in_sync() -> None:
    assert example("sync_stores").main() == [{"_id": 2, "text": "new", "done": True}]


def test_the_search_index_follows_the_articles() -> None:
    assert example("search_index").main() == [["lmdb"], ["oak", "lmdb"], [], ["lmdb"]]


def test_the_work_queue_does_each_job_once() -> None:
    assert example("work_queue").main() == [number**2 for number in range(20)]


def test_server_sent_events_resume_behind_the_last() -> None:
    pytest.importorskip("fastapi")
    testing = pytest.importorskip("starlette.testclient")
    with testing.TestClient(example("server_sent_events").app) as client:
        first = client.post("/orders", json={"item": "pen"})
        assert first.status_code == 200
        since = client.app.state.orders._wrapped.watch().resume_token["_data"]
        for item in ("ink", "paper"):
            client.post("/orders", json={"item": item})
        reply = client.get("/orders/events?count=2", headers={"last-event-id": since})
        lines = reply.text.splitlines()
        assert [line for line in lines if line.startswith("event:")] == ["event: insert"] * 2
        assert [item in reply.text for item in ("pen", "ink", "paper")] == [False, True, True]
        last = lines[0].removeprefix("id: ")
        again = client.get("/orders/events?count=1", headers={"last-event-id": last})
        assert "paper" in again.text and "ink" not in again.text
