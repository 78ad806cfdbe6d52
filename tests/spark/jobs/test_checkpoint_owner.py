"""Two jobs on one checkpoint: the second is refused with the names of both, whether the first runs or has ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import headrace
from headrace.spark.jobs.runner import JobRunning, job_lock, reset_job, running_process
from headrace.spark.jobs.start_checks import begin, check_job
from headrace.spark.tables.progress import NotOurTable
from tests.spark.jobs.test_start_checks import insert, job_of, ran

pytestmark = pytest.mark.long


@pytest.fixture
def server() -> Iterator[headrace.Server]:
    with headrace.Server() as server:
        insert(server.uri, 1)
        yield server


def test_a_checkpoint_that_another_job_runs_on_is_refused_with_both_names(
    server: headrace.Server, tmp_path: Path
) -> None:
    orders = replace(job_of(server.uri, tmp_path, {"kind": "mirror"}), name="orders")
    with job_lock(orders):
        said = r"checkpoint is another job's: orders runs on it in process \d+; give invoices a checkpoint of its own"
        with pytest.raises(JobRunning, match=said):
            reset_job(replace(orders, name="invoices"))
        assert running_process(orders)


@pytest.mark.parametrize("source", [{}, {"collection": "invoices"}])
def test_a_checkpoint_of_a_job_that_has_ended_is_refused_with_both_names(
    server: headrace.Server, tmp_path: Path, source: dict[str, str]
) -> None:
    ran(replace(job_of(server.uri, tmp_path, {"kind": "mirror"}), name="orders"))
    path = "mirror" if source else "another"
    invoices = replace(job_of(server.uri, tmp_path, {"kind": "mirror", "path": path}, **source), name="invoices")
    said = r"checkpoint is another job's: it is of orders, which reads d\.c; give invoices a checkpoint of its own"
    with pytest.raises(NotOurTable, match=said):
        check_job(invoices)


def test_a_job_that_was_renamed_goes_on(server: headrace.Server, tmp_path: Path) -> None:
    orders = replace(job_of(server.uri, tmp_path, {"kind": "mirror"}), name="orders")
    ran(orders)
    renamed = replace(orders, name="sales")
    assert begin(renamed).record.name == "sales"
    (tmp_path / "mirror").rename(tmp_path / "moved")
    moved = replace(job_of(server.uri, tmp_path, {"kind": "mirror", "path": "moved"}), name="all sales")
    assert check_job(moved).record.name == "all sales"
