"""A standalone cluster of two workers: tables of each kind equal the collection, with a worker killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pymongo.database import Database

from tests.spark.session.test_submit import submit
from tests.spark.support.standalone_cluster import standalone_cluster

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the worker in /proc"),
]

Db = Database[dict[str, Any]]


def test_two_workers_fold_and_write_with_a_worker_killed(uri: str, database: Db, tmp_path: Path) -> None:
    """Takes over a minute: six JVMs, which are new to Spark's classes."""
    collection = database.client.get_database("d").c
    collection.drop()
    late = {"late": 1, "n": 0.5}  # a new column, and another type of one
    documents = [{"_id": number, "n": number, "text": "x" * 100} for number in range(12_000)]
    collection.insert_many([each | late if each["_id"] > 7000 else each for each in documents])
    with standalone_cluster(tmp_path) as master:
        script = Path(__file__).with_name("clustered.py")
        result = submit(tmp_path, master, uri, "--executor-memory", "512m", script=script)
    assert result["master"] == master
    assert result["killed"] == [True]
    assert not result["folded"].pop("changes")
    for kind, folded in result["folded"].items():
        assert any(folded), "tasks fold batches of each kind"
        assert all(folded) or "typed" in kind, "the driver folds only what needs other columns"
    for kind in ("mirror", "history", "mirror typed", "history typed"):
        table = DeltaTable(tmp_path / kind).to_pyarrow_table()
        assert table.num_rows == 12_000
        assert "typed" not in kind or table.column("late").null_count == 7001
    assert DeltaTable(tmp_path / "changes").to_pyarrow_table().num_rows == 12_002
    collection.drop()
