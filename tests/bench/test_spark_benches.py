"""The benches of streams: what they count, and each once on a few rows, so that they run when they are wanted."""

from __future__ import annotations

from pathlib import Path

import pytest
from bson import Timestamp

BENCH = str(Path(__file__).parents[2] / "bench")


@pytest.fixture(autouse=True)
def _bench_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)


def batch(begun: str, taken_ms: int, end: int) -> dict[str, object]:
    token = f'{{"token":"82{end:08X}00000001"}}'
    return {"timestamp": begun, "durationMs": {"triggerExecution": taken_ms}, "sources": [{"endOffset": token}]}


def test_a_latency_ends_with_the_first_batch_that_has_the_event() -> None:
    from spark_meter import ended_ms, headrace_covers, latencies_ms

    batches = [batch("1970-01-01T00:00:10.000Z", 50, 5), batch("1970-01-01T00:00:11.500Z", 100, 8)]
    assert ended_ms(batches[0]) == 10_050
    sent = [(10_000.0, Timestamp(5, 1)), (10_010.0, Timestamp(6, 1)), (11_000.0, Timestamp(8, 1))]
    sent.append((11_590.0, Timestamp(9, 1)))
    assert latencies_ms(sent, batches, headrace_covers) == [50, 1590, 600], "the last is in no batch"


def test_an_offset_of_the_connector_excludes_its_second() -> None:
    from spark_comparison import connector_covers

    end = {"sources": [{"endOffset": {"version": 1, "offset": {"$timestamp": {"t": 7, "i": 0}}}}]}
    assert connector_covers(end, Timestamp(6, 9))
    assert not connector_covers(end, Timestamp(7, 1))


def test_cpu_time_of_children_is_counted_without_the_servers() -> None:
    from spark_meter import cpu_now
    from target import StartedServer

    with StartedServer() as server:
        cpu = cpu_now(server)
    assert cpu.driver > 0
    assert cpu.server > 0
    assert cpu.total >= cpu.driver + cpu.server


def test_the_bench_of_upkeep_reads_each_row_back(tmp_path: Path) -> None:
    from spark_sinks import measure_upkeep

    lines: list[str] = []
    figures = measure_upkeep(tmp_path / "table", batches=3, size=2, upkeep=True, report=lines.append)
    assert figures["files"] == 3 and figures["scan_ms"] > 0
    assert lines[0].startswith("with upkeep, 3 batches of 2 rows: 3 files")


@pytest.mark.spark
def test_each_bench_of_streams_runs_on_a_few_rows() -> None:
    import spark_jobs
    import spark_latency
    from target import StartedServer

    from headrace.spark.session import get_session

    with StartedServer() as server:
        spark = get_session(quick=True)
        lines: list[str] = []
        names = ("nothing", "changes", "once")
        cases = {name: spark_jobs.CASES[name] for name in names}
        figures = spark_jobs.measure(spark, server, cases, rows=1500, batch=1000, rounds=1, report=lines.append)
        assert [line.partition(",")[0] for line in lines] == list(names)
        assert all(figure["rate"] > 0 for figure in figures.values())
        latency = spark_latency.measure(
            spark_latency.CASES["each"], spark, server, rate=50, seconds=0.3, idle=0.1, warm=0
        )  # fmt: skip
        assert latency["events"] > 0
        assert latency["median_ms"] > 0
        several = spark_jobs.measure_collections(spark, server, collections=3, documents=2, report=lines.append)
        assert several["batch_s"] > 0 and lines[-1].startswith("3 collections of 2 documents")
