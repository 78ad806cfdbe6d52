"""Names of tables in Spark's catalogs, one for each collection, without Spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.jobs.job_file import Job, JobError, parse_job
from headrace.spark.jobs.job_tables import missing_tables, open_sink, tables_of
from headrace.spark.sinks.sink_options import SinkError, parse_sink
from headrace.spark.sinks.table_paths import overlap, table_in
from headrace.spark.tables.progress import NotOurTable
from tests.spark.sinks.test_collections_sink import batch, insert

SOURCE = {"uri": "mongodb://h", "database": "d", "startingPosition": "snapshot"}


def job_of(folder: Path, *sinks: dict[str, Any], **source: Any) -> Job:
    given = {name: value for name, value in (SOURCE | source).items() if value is not None}
    return parse_job({"checkpoint": "c", "source": given, "sink": list(sinks)}, "job", folder)


def mirror(table: str, **options: Any) -> dict[str, Any]:
    return {"kind": "mirror", "table": table, **options}


@given(st.text(min_size=1, max_size=60))
def test_a_collection_s_table_is_an_identifier(name: str) -> None:
    name = name.encode(errors="ignore").decode() or "x"
    schema, table = table_in("lake.{database}.m_{collection}", (name, name)).split(".")[1:]
    assert re.fullmatch(r"\w+", table, re.ASCII) and table == table.lower() and table == f"m_{schema}"


def test_letters_digits_and_underscores_stay_in_lower_case() -> None:
    names = ("userProfiles", "fs.files", "log-2026 `x`", "é", "注文")
    made = [table_in("{collection}", ("d", name)) for name in names]
    assert made == ["userprofiles", "fs_files", "log_2026__x_", "c3a9", "e6b3a8e69687"]


def test_a_job_has_a_table_for_each_collection(tmp_path: Path) -> None:
    job = job_of(tmp_path, mirror("lake.{database}.{collection}", using="iceberg"), collections=["a", "b*"])
    (sink,) = job.sinks
    assert sink.per_collection and sink.in_catalog and sink.location is None
    one = sink.of_collection(("d", "b.c"))
    assert (str(one), one.options["using"], one.per_collection) == ("mirror lake.d.b_c", "iceberg", False)
    # Which of them there are is not asked before Spark runs, and none is called missing then.
    assert list(tables_of(job, with_spark=False)) == []
    assert missing_tables(job, ["mirror lake.d.b_c"], with_spark=False) == []
    (single,) = job_of(tmp_path, mirror("lake.{database}.{collection}"), collection="a.b").sinks
    assert (single.target, single.per_collection) == ("lake.d.a_b", False)


def test_names_by_which_collections_share_a_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"needs \{database\} and \{collection\}"):
        job_of(tmp_path, mirror("lake.x.{collection}"), database=None)
    with pytest.raises(JobError, match=r"has \{name\}"):
        job_of(tmp_path, mirror("lake.x.{name}"))
    with pytest.raises(JobError, match="only the schema and the name of a table"):
        job_of(tmp_path, mirror("{database}.x.{collection}"))
    with pytest.raises(JobError, match=r"its table's name in a catalog, needs \{collection\}"):
        job_of(tmp_path, mirror("lake.x.orders"))
    both = mirror("lake.x.{collection}"), {"kind": "history", "table": "lake.X.{collection}_history"}
    with pytest.raises(SinkError, match="may have one table"):
        job_of(tmp_path, *both)
    assert not overlap("lake.x.m_{collection}", "lake.x.h_{collection}")
    assert not overlap("x.orders", "x.orders.orders")


def test_a_format_is_that_of_tables_that_are_made_in_a_catalog(tmp_path: Path) -> None:
    assert parse_sink(mirror("lake.x.y", using="delta"), tmp_path).options["using"] == "delta"
    for options in (mirror("lake.x.y", using="parquet"), {"kind": "mirror", "path": "m", "using": "delta"}):
        with pytest.raises(SinkError, match="using, one of delta, iceberg, is the format of tables"):
            parse_sink(options, tmp_path)


@pytest.mark.parametrize("names", [("b.c", "b_c"), ("Orders", "orders")])
def test_two_collections_of_one_table_are_refused_by_name(names: tuple[str, str], tmp_path: Path) -> None:
    job = job_of(tmp_path, mirror("lake.x.{collection}", using="delta"))
    sink = open_sink(job, job.sinks[0], job.options)
    one, other = sorted(names)
    with pytest.raises(NotOurTable, match=rf"d\.{re.escape(one)} and d\.{re.escape(other)} would have one table, lake"):
        sink.apply(batch(0, insert("1", one, 1), insert("2", other, 1)))
