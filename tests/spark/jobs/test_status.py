"""The status of a job, without Spark: what is shown, as JSON, and as an exit status; and the recipes of the docs."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import headrace
from headrace import limits
from headrace.cli.main import main
from headrace.spark.jobs.job_file import Job, read_job
from headrace.spark.jobs.job_model import OnLag
from headrace.spark.jobs.report import verify_job
from headrace.spark.jobs.run_reports import RunState, write_state
from headrace.spark.jobs.runner import job_lock
from headrace.spark.jobs.sink_states import ServerUnreachable
from headrace.spark.jobs.status import FAILED, FINE, LATE, job_status, lines_of
from tests.spark.jobs.test_start_checks import SINKS, insert, job_of, ran

pytestmark = pytest.mark.long
PAGE = Path(__file__).parents[3] / "docs/spark/operation.md"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with headrace.Server() as server:
        insert(server.uri, 1)
        job = job_of(server.uri, tmp_path, *SINKS)
        assert list(lines_of(job_status(job)))[1:] == [
            "position: nothing committed yet", *(f"sink {sink}: nothing yet" for sink in job.sinks)
        ]  # fmt: skip
        ran(job)
        insert(server.uri, 2, 3)
        yield job


def test_a_status_has_the_lag_and_what_the_tables_have(job: Job) -> None:
    status = job_status(job)
    assert (status.exit_status, status.failure) == (FINE, "")
    lines = list(lines_of(status))
    assert any(re.match(r"lag: 2 events, \d+ s$", line) for line in lines)
    tables = [match[0] for line in lines if (match := re.search(r"(\d+ rows in )?\d+ files, \d", line))]
    assert [table[:-3] for table in tables] == ["1 rows in 1 files", *["0 rows in 0 files"] * 2, "1 files"]
    document = json.loads(json.dumps(status.document()))
    assert document["lag"]["events"] == 2 and document["status"] == "fine"
    assert [sink["table"]["rowCount"] for sink in document["sinks"]] == [1, 0, 0, None]


def test_a_lag_above_its_bound_is_late(job: Job) -> None:
    assert job_status(replace(job, on_lag=OnLag(events=2))).exit_status == LATE
    assert job_status(replace(job, on_lag=OnLag(events=3))).exit_status == FINE
    late = job_status(job, lag_seconds_max=-1)
    assert late.exit_status == LATE and any(line.endswith(" s (late)") for line in lines_of(late))


def test_a_run_that_failed_or_was_killed_is_a_failed_job_until_it_runs_again(job: Job) -> None:
    for phase, error, word in (("failed", "ValueError: x", "ValueError: x"), ("streaming", "", "it was killed")):
        write_state(job.checkpoint, RunState(1, phase, 0, 0, error))
        status = job_status(job)
        assert status.exit_status == FAILED and word in status.failure
        assert f"failed: {status.failure}" in list(lines_of(status))
    write_state(job.checkpoint, RunState(1, "stopped", 0, 0))
    assert job_status(job).exit_status == FINE
    figures = {"batch_seconds": 0.25, "rows_total": 9, "rows_per_second": 3.0}
    write_state(job.checkpoint, RunState(1, "streaming", 0, 0, figures=figures))
    with job_lock(job):
        status = job_status(job)
        assert status.failure == "" and status.process is not None
        assert next(iter(lines_of(status))).endswith(", streaming, 9 rows, 3 rows/s, last batch 0.25 s")


def test_a_table_that_cannot_be_read_leaves_the_others(job: Job) -> None:
    location = job.sinks[0].location
    assert location is not None
    shutil.rmtree(location.url)
    (Path(location.url) / "_delta_log").mkdir(parents=True)
    (Path(location.url) / "_delta_log/00000000000000000000.json").write_text("{")
    status = job_status(job)
    assert status.sinks[0].error and not any(sink.error for sink in status.sinks[1:])
    assert status.exit_status == FAILED


def test_a_server_that_is_gone_is_an_unknown_lag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with headrace.Server() as server:
        insert(server.uri, 1)
        job = job_of(server.uri, tmp_path, SINKS[0])
        ran(job)
    monkeypatch.setattr(limits, "START_CHECK_SECONDS_MAX", 0.2)
    began = time.monotonic()
    status = job_status(job)
    assert status.lag is None and status.exit_status == FAILED
    assert any(line.startswith("lag: unknown: ") for line in lines_of(status))
    with pytest.raises(ServerUnreachable, match="no server answers"):
        next(verify_job(job))
    assert time.monotonic() - began < 10


def test_the_command_prints_a_line_of_json_and_exits_with_the_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with headrace.Server() as server:
        (tmp_path / "job.toml").write_text(
            f'checkpoint = "c"\nsource = {{uri = "{server.uri}", database = "d", collection = "c"}}\n'
            '[[sink]]\nkind = "changes"\npath = "p"\n'
        )
        assert main(["pipeline", "status", "--json", "--max-lag", "5", str(tmp_path / "job.toml")]) == 0
        assert json.loads(capsys.readouterr().out)["running"] is False
        write_state(read_job(tmp_path / "job.toml").checkpoint, RunState(1, "failed", 0, 0, "ValueError: x"))
        assert main(["pipeline", "status", str(tmp_path / "job.toml")]) == 1
        assert "failed: ValueError: x" in capsys.readouterr().out


def recipe(language: str, first: str) -> str:
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return next(block for block in blocks if block.startswith(first))


def accepts(command: list[str], tmp_path: Path) -> None:
    """The command line is one that `headrace` has: it comes as far as the file, which is not there."""
    words = [word if not word.endswith(".toml") else str(tmp_path / "none.toml") for word in command]
    assert words[0].endswith("headrace")
    assert main(words[1:]) == 1


def test_the_unit_of_systemd_has_a_command_that_exists(tmp_path: Path) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    text = recipe("ini", "# headrace-orders.service")
    unit.read_string(text)
    accepts(shlex.split(unit["Service"]["ExecStart"]), tmp_path)
    assert unit["Service"]["KillMode"] == "mixed"
    if shutil.which("systemd-analyze"):
        path = tmp_path / "headrace-orders.service"
        path.write_text(text.replace("/usr/local/bin/headrace", "/bin/true").replace("User=headrace\n", ""))
        done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, check=False)
        assert str(path.name) not in done.stderr


def test_the_lines_of_cron_have_commands_that_exist(tmp_path: Path) -> None:
    for line in recipe("text", "# /etc/cron.d/headrace").splitlines()[1:]:
        *times, user, command = line.split(maxsplit=6)
        assert len(times) == 5 and user == "headrace"
        accepts(shlex.split(re.split(r" >> | > ", command)[0]), tmp_path)
        # cron ends a command at a percent sign.
        assert "%" not in command
