"""What a job says of itself: figures of a snapshot, and the file that other processes read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
from pyspark.sql.streaming.listener import SourceProgress

from headrace.spark.jobs.metrics import JobMetrics, snapshot_text
from headrace.spark.jobs.metrics_listener import JavaListener, MetricsListener
from headrace.spark.jobs.run_reports import NAME, RunState, read_state, state_of, write_state


def test_the_state_is_read_as_it_is_stored_and_a_torn_one_is_none(tmp_path: Path) -> None:
    metrics = JobMetrics("orders", batch=3, rows_total=9, phase="streaming")
    state = state_of(metrics, started_ms=1, now_ms=2)
    write_state(tmp_path / "checkpoint", state)
    assert read_state(tmp_path / "checkpoint") == state
    assert state.process == os.getpid() and state.figures is not None and state.figures["rows_total"] == 9
    (tmp_path / "checkpoint" / NAME).write_text('{"process": 1')
    assert read_state(tmp_path / "checkpoint") is None
    (tmp_path / "checkpoint" / NAME).write_text('{"process": 1, "phase": "ended", "newer": 1}')
    assert read_state(tmp_path / "checkpoint") is None
    assert read_state(tmp_path) is None


def test_a_state_that_cannot_be_stored_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    write_state(tmp_path / "file", RunState(1, "running", 0, 0))


def test_an_error_makes_a_run_a_failed_one() -> None:
    state = state_of(JobMetrics("orders", phase="streaming"), started_ms=1, now_ms=2, error="ValueError: x")
    assert (state.phase, state.error) == ("failed", "ValueError: x")


def progress(batch: int, rows: int, end: str, documents: int | None = None) -> Any:
    given: dict[str, Any] = {"sources": [SimpleNamespace(endOffset=end)], "durationMs": {"triggerExecution": 2000}}
    given["observedMetrics"] = {} if documents is None else {"headrace": {"snapshotDocuments": documents}}
    return SimpleNamespace(progress=SimpleNamespace(id="q", batchId=batch, numInputRows=rows, **given))


def test_a_snapshot_says_how_much_of_it_is_done_and_how_long_it_takes() -> None:
    metrics = JobMetrics("orders", snapshot_documents_total=2000)
    listener = MetricsListener(metrics, "q")
    listener.resume({"token": "826B02F49C000000022B0429296E1404", "after": '{"_id": 1}'}, 300)
    listener.onQueryProgress(progress(0, 200, '{"token": "826B02F49C000000022B0429296E1404", "after": "{}"}'))
    assert metrics.snapshot_documents == 500
    left = metrics.snapshot_seconds_left
    assert left is not None and 14 < left < 17  # 1500 documents, as fast as 200 in 2 s
    assert f"snapshot of 500 of 2000 documents (25 %), {left:.0f} s left" in metrics.line()
    assert metrics.registry().get_sample_value("headrace_pipeline_snapshot_documents", {"job": "orders"}) == 500
    listener.onQueryProgress(progress(1, 10, '{"token": "826B02F49D000000022B0429296E1404"}'))
    assert metrics.snapshot_documents == 500 and "streaming at 826B02F49D" in metrics.line()


@pytest.mark.parametrize("pyspark", ["4.1", "4.2"])
def test_the_progress_of_a_batch_is_read_from_java_as_one_text(monkeypatch: pytest.MonkeyPatch, pyspark: str) -> None:
    """As PySpark reads it, each of its maps ended with an exception of Java. Offsets are texts or, to 4.1, values."""
    if pyspark == "4.1":
        of_json = SourceProgress.fromJson
        offsets = ("startOffset", "endOffset", "latestOffset")
        monkeypatch.setattr(SourceProgress, "fromJson", lambda j: of_json(j | {name: str(j[name]) for name in offsets}))
    end = {"token": "826B02F49D000000022B0429296E1404", "selection": "shop", "waiting": []}
    source = {"description": "headrace", "startOffset": None, "endOffset": end, "latestOffset": end}
    source |= {"numInputRows": 7, "processedRowsPerSecond": 2.5, "metrics": {}}  # a rate that is no number is absent
    given = {
        "id": "5f9b7a4e-6b1f-4f0e-8a53-1f3c6e1f0a01", "runId": "5f9b7a4e-6b1f-4f0e-8a53-1f3c6e1f0a02",
        "name": "shop", "timestamp": "2026-01-02T03:04:05.678Z", "batchId": 3, "batchDuration": 2000,
        "durationMs": {"triggerExecution": 2000}, "stateOperators": [], "sources": [source],
        "sink": {"description": "ForeachBatchSink", "numOutputRows": -1, "metrics": {}},
        "numInputRows": 7, "inputRowsPerSecond": 0.5, "processedRowsPerSecond": 2.5,
        "observedMetrics": {"headrace": {"snapshotDocuments": 4}},
    }  # fmt: skip
    event = Mock()
    event.progress.return_value.json.return_value = json.dumps(given)
    metrics = JobMetrics("shop")
    JavaListener(MetricsListener(metrics, given["id"])).onQueryProgress(event)
    assert event.mock_calls == [call.progress(), call.progress().json()]
    assert (metrics.rows_total, metrics.batch, metrics.snapshot_documents) == (7, 3, 4)
    assert "at 826B02F49D" in metrics.line()


def test_what_was_read_of_an_earlier_snapshot_is_not_counted_for_a_new_one() -> None:
    metrics = JobMetrics("orders")
    listener = MetricsListener(metrics, "q")
    listener.resume({"token": "826B02F49C000000022B0429296E1404"}, 300)
    listener.onQueryProgress(progress(0, 201, '{"token": "826B02F49C000000022B0429296E1404", "after": "{}"}'))
    assert metrics.snapshot_documents == 200


def test_a_batch_of_several_collections_counts_the_documents_of_their_snapshots() -> None:
    metrics = JobMetrics("shop", snapshot_documents_total=60)
    listener = MetricsListener(metrics, "q")
    reading = '{"token": "826B02F49C000000022B0429296E1404", "selection": "shop", "waiting": ["shop.b"]}'
    for batch, rows, documents in ((0, 22, 20), (1, 500, 0), (2, 55, 20)):
        listener.onQueryProgress(progress(batch, rows, reading, documents))
    assert metrics.snapshot_documents == 40
    ended = '{"token": "826B02F49D000000022B0429296E1404", "selection": "shop"}'
    for batch, rows, documents in ((3, 100, 20), (4, 100, 0)):
        listener.onQueryProgress(progress(batch, rows, ended, documents))
    assert (metrics.snapshot_documents, metrics.phase) == (60, "streaming")


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        ((5, None, None), "snapshot of 5 documents so far"),
        ((5, 0, None), "snapshot of 5 documents so far"),
        ((12, 10, 0.0), "snapshot of 12 of 10 documents (100 %), 0 s left"),
        ((1, 3, None), "snapshot of 1 of 3 documents (33 %)"),
    ],
)
def test_a_snapshots_progress_in_words(figures: Any, text: str) -> None:
    assert snapshot_text(*figures) == text


def ended(query: str, run: str) -> Any:
    return SimpleNamespace(id=query, runId=run)


def test_the_late_end_of_an_earlier_query_does_not_end_the_next() -> None:
    """Spark reports it to every listener that is there by then. A job that took it for its own query's read nothing."""
    listener = MetricsListener(JobMetrics("orders"))
    listener.onQueryTerminated(ended("earlier", "run 0"))
    listener.follow("q", "run 2")
    assert not listener.ended.is_set()
    listener.onQueryTerminated(ended("earlier", "run 0"))
    listener.onQueryTerminated(ended("q", "run 1"))
    assert not listener.ended.is_set()
    listener.onQueryTerminated(ended("q", "run 2"))
    assert listener.ended.is_set()


def test_a_query_that_ends_before_it_is_followed_has_ended() -> None:
    listener = MetricsListener(JobMetrics("orders"))
    listener.onQueryTerminated(ended("q", "run 1"))
    listener.follow("q", "run 1")
    assert listener.ended.is_set()


def test_a_listener_that_follows_no_run_ends_with_its_query() -> None:
    """Programs add one to a query of their own before it starts, when it has no id yet."""
    listener = MetricsListener(JobMetrics("orders"))
    listener.onQueryTerminated(ended("q", "run 1"))
    assert listener.ended.is_set()
