"""Long work has a bar on a terminal, and nothing where there is none."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest

import headrace
from headrace.cli import progress
from headrace.cli.main import main
from headrace.cli.transfer import import_command
from headrace.spark.jobs.metrics import JobMetrics
from headrace.spark.jobs.report import SinkVerification


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""


@pytest.fixture(scope="module")
def server() -> Iterator[headrace.Server]:
    with headrace.Server() as running:
        yield running


@pytest.fixture
def shop(server: headrace.Server) -> Iterator[Any]:
    with pymongo.MongoClient[dict[str, Any]](server.uri) as client:
        client.drop_database("shop")
        client.shop.orders.insert_many([{"_id": number, "item": "pen" * 100} for number in range(50)])
        yield client.shop


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    shown = Terminal()
    monkeypatch.setattr(progress, "DELAY_S", 0)
    monkeypatch.setattr(progress, "_terminal", lambda: shown)
    monkeypatch.setattr(progress, "INTERVAL_S", 0)
    monkeypatch.setattr(import_command, "BATCH_COUNT", 10)
    return shown


@pytest.fixture
def dumped(shop: Any, server: headrace.Server, tmp_path: Path) -> Path:
    shop.orders.create_index("item")
    assert main(["export", server.uri, "shop", "--out", str(tmp_path / "dump")]) == 0
    assert main(["export", server.uri, "shop.orders", "--out", str(tmp_path / "orders.json")]) == 0
    return tmp_path


def test_an_export_shows_how_many_documents_are_written(
    terminal: Terminal, shop: Any, server: headrace.Server, tmp_path: Path
) -> None:
    assert main(["export", server.uri, "shop.orders", "--limit", "20", "--out", str(tmp_path / "orders.json")]) == 0
    assert "shop.orders: " in terminal.getvalue() and "/20 " in terminal.getvalue()


def test_a_dump_shows_each_collection(terminal: Terminal, dumped: Path) -> None:
    assert "shop.orders: " in terminal.getvalue() and "/50 " in terminal.getvalue()


def test_an_import_shows_the_bytes_of_the_file(terminal: Terminal, dumped: Path, server: headrace.Server) -> None:
    terminal.truncate(0)
    assert main(["import", server.uri, "shop.others", str(dumped / "orders.json")]) == 0
    assert "shop.others: 100%" in terminal.getvalue() and "B/s" in terminal.getvalue()


def test_a_restore_shows_the_bytes_of_the_dump(terminal: Terminal, dumped: Path, server: headrace.Server) -> None:
    terminal.truncate(0)
    assert main(["import", server.uri, str(dumped / "dump"), "--drop"]) == 0
    assert "shop.orders: 100%" in terminal.getvalue()


def test_a_pipe_shows_the_count_of_documents(
    terminal: Terminal, dumped: Path, server: headrace.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal.truncate(0)
    with (dumped / "orders.json").open("rb") as file:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read())))
    assert main(["import", server.uri, "shop.others", "-"]) == 0
    assert "50 documents" in terminal.getvalue()


def test_an_index_build_shows_what_the_server_says_of_it(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    class Admin:
        def aggregate(self, stages: Any) -> Any:
            assert stages[1]["$match"]["ns"] == "shop.orders"
            looked.set()
            return [{"progress": {"done": 30, "total": 120}}]

    class Client:
        admin = Admin()

    looked = threading.Event()
    monkeypatch.setattr(progress, "_POLL_S", 0)
    with progress.index_progress(Client(), "shop", "orders"):  # type: ignore[arg-type]
        assert looked.wait(10)
    assert "indexes of shop.orders: " in terminal.getvalue() and "30/120" in terminal.getvalue()


def test_a_check_shows_pages_and_rows(terminal: Terminal, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with headrace.open(tmp_path / "data") as store:
        store.shop.orders.insert_many([{"_id": number} for number in range(100)])
    assert main(["check", str(tmp_path / "data")]) == 0
    assert "pages: " in terminal.getvalue() and "rows: " in terminal.getvalue()
    assert "no problems" in capsys.readouterr().out


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    path = tmp_path / "orders.toml"
    path.write_text(
        f'checkpoint = "{tmp_path}/checkpoint"\n'
        '[source]\nstartingPosition = "snapshot"\nuri = "mongodb://localhost:1"\n'
        'database = "shop"\ncollection = "orders"\n'
        f'[[sink]]\nkind = "mirror"\npath = "{tmp_path}/table"\n'
    )
    return str(path)


def test_a_job_shows_its_snapshot_and_no_bar_after_it(
    terminal: Terminal, job_file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_job(job: Any, *, report: Any, on_batch: Any, **others: Any) -> None:
        metrics = JobMetrics(job.name, on_batch=on_batch, phase="snapshot", snapshot_documents_total=400)
        metrics.snapshot_read(100, 100, 1.0)
        metrics.ended(0, 100, 1.0)
        report("a line")
        metrics.phase = "streaming"
        before = len(terminal.getvalue())
        metrics.ended(1, 5, 1.0)
        metrics.ended(2, 5, 1.0)
        assert "/400" not in terminal.getvalue()[before:]

    monkeypatch.setattr("headrace.spark.jobs.runner.run_job", run_job)
    assert main(["pipeline", "run", job_file]) == 0
    assert "snapshot:  25%" in terminal.getvalue() and "100/400" in terminal.getvalue()
    assert capsys.readouterr().out == "a line\n"


def test_a_verification_shows_how_many_documents_are_read(
    terminal: Terminal, job_file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def verify_job(job: Any, counted: Any) -> Iterator[SinkVerification]:
        counted(1000, 2000)
        yield SinkVerification("mirror", True, "2000 rows, 2000 documents")

    monkeypatch.setattr("headrace.spark.jobs.report.verify_job", verify_job)
    assert main(["pipeline", "verify", job_file]) == 0
    assert "verify:  50%" in terminal.getvalue() and "1000/2000" in terminal.getvalue()
    assert capsys.readouterr().out == "mirror: equal: 2000 rows, 2000 documents\n"


@pytest.mark.parametrize("command", ["export", "import", "restore", "check"])
def test_nothing_is_shown_where_there_is_no_terminal(
    command: str, dumped: Path, server: headrace.Server, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(progress, "DELAY_S", 0)
    with headrace.open(tmp_path / "data"):
        pass
    capfd.readouterr()
    words = {
        "export": ["export", server.uri, "shop.orders", "--out", str(tmp_path / "again.json")],
        "import": ["import", server.uri, "shop.others", str(dumped / "orders.json")],
        "restore": ["import", server.uri, str(dumped / "dump"), "--drop"],
        "check": ["check", str(tmp_path / "data")],
    }
    assert main(words[command]) == 0
    assert capfd.readouterr().err == ""
