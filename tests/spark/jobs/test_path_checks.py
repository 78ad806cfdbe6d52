"""A job's paths are apart, as the file system takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.spark.jobs import path_checks
from headrace.spark.jobs.job_file import Job, JobError, parse_job
from headrace.spark.sinks.sink_options import SinkError


def job_of(folder: Path, *, checkpoint: str = "checkpoint", sink: dict[str, Any] | None = None, **more: Any) -> Job:
    source = {"uri": "mongodb://h", "database": "d", "collection": "c", "startingPosition": "snapshot"}
    given = {"checkpoint": checkpoint, "sink": [sink or {"kind": "mirror", "path": "table"}]}
    return parse_job({**given, "source": source | more.pop("source", {}), **more}, "job", folder)


@pytest.mark.parametrize("path", ["checkpoint", "./checkpoint/", "x/../checkpoint", "link", "checkpoint/inside"])
@pytest.mark.parametrize("key", ["sink", "deadletter", "archive", "schema_file", "position", "lookup"])
def test_a_checkpoint_is_no_place_for_what_else_the_job_has(tmp_path: Path, path: str, key: str) -> None:
    """`reset` removes it."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "checkpoint")
    more: dict[str, Any] = {
        "sink": {"sink": {"kind": "changes", "path": path}},
        "deadletter": {"errors": "deadletter", "deadletter": path},
        "archive": {"source": {"archive": path}},
        "schema_file": {"sink": {"kind": "mirror", "path": "table", "schema": "infer", "schema_file": path}},
        "position": {"sink": {"kind": "kafka", "servers": "k:1", "topic": "t", "position": path}},
        "lookup": {
            "sink": {"kind": "documents", "path": "table"}, "source": {"startingPosition": "earliest"},
            "pipeline": {
                "stages": [{"$lookup": {"from": "t", "localField": "a", "foreignField": "_id", "as": "b"}}],
                "tables": {"t": {"path": path}},
            },
        },
    }[key]  # fmt: skip
    with pytest.raises(SinkError, match=r"one path|one is inside the other"):
        job_of(tmp_path, **more)


def test_a_checkpoint_inside_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="checkpoint and the path of the sink mirror have paths of which one is inside"):
        job_of(tmp_path, checkpoint="table/checkpoint")


@pytest.mark.parametrize("path", [".", "..", "../x/.."])
def test_the_folder_of_the_jobs_file_is_neither_table_nor_checkpoint(tmp_path: Path, path: str) -> None:
    with pytest.raises(SinkError, match="the folder of the job's file"):
        job_of(tmp_path, sink={"kind": "mirror", "path": path})
    with pytest.raises(SinkError, match="the folder of the job's file"):
        job_of(tmp_path, checkpoint=path)


@pytest.mark.parametrize("url", ["s3://bucket/checkpoint", "file:///tmp/checkpoint", "hdfs://h/checkpoint"])
def test_a_checkpoint_in_an_object_store_is_refused_by_name(tmp_path: Path, url: str) -> None:
    with pytest.raises(JobError, match="checkpoint is a folder on a mounted file system, not the URL"):
        job_of(tmp_path, checkpoint=url)


def test_a_template_may_not_name_the_checkpoint_by_a_collection(tmp_path: Path) -> None:
    sink = {"kind": "mirror", "path": "lake/{collection}"}
    source = {"collections": '["*"]'}
    given = {"uri": "mongodb://h", "database": "d", "startingPosition": "snapshot"}

    def job(checkpoint: str) -> Job:
        return parse_job({"checkpoint": checkpoint, "sink": [sink], "source": given | source}, "job", tmp_path)

    with pytest.raises(SinkError, match="a collection may have that name"):
        job("lake/checkpoint")
    with pytest.raises(SinkError, match="a collection may have that name"):
        job("lake")
    assert job("lake/_checkpoint").checkpoint.name == "_checkpoint"


def test_where_case_does_not_matter_names_that_differ_in_it_are_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_of(tmp_path, checkpoint="Table")
    monkeypatch.setattr(path_checks, "ignores_case", lambda path: True)
    with pytest.raises(SinkError, match="one path"):
        job_of(tmp_path, checkpoint="Table")


def test_a_file_system_ignores_case_if_it_finds_a_name_in_another_case(tmp_path: Path) -> None:
    (tmp_path / "Folder").mkdir()
    assert not path_checks.ignores_case(tmp_path / "Folder" / "not there")
    (tmp_path / "fOLDER").symlink_to(tmp_path / "Folder")
    assert path_checks.ignores_case(tmp_path / "Folder")
