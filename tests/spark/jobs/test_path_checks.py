"""A job's paths are apart, as the file system takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.spark.jobs import job_file
from headrace.spark.jobs.job_file import Job, JobError, parse_job, read_job
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


@pytest.mark.parametrize(
    ("data", "checkpoint", "path"),
    [
        ("table", "checkpoint", "table"),
        ("table", "checkpoint", "table/inside"),
        ("table/data", "checkpoint", "table"),
        ("checkpoint", "checkpoint", "table"),
        ("checkpoint/data", "checkpoint", "table"),
        ("data", "data/checkpoint", "table"),
    ],
)
def test_the_data_directory_is_apart_from_all_else_and_its_server_is_not_started(
    tmp_path: Path, data: str, checkpoint: str, path: str
) -> None:
    """`reset` would remove the database."""
    source = {"path": data, "database": "d", "collection": "c", "startingPosition": "snapshot"}
    given = {"checkpoint": checkpoint, "source": source, "sink": [{"kind": "mirror", "path": path}]}
    with pytest.raises(SinkError, match=r"the data directory, the path of \[source\], (and|have)"):
        parse_job(given, "job", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_data_directory_that_is_a_file_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    file = tmp_path / "job.toml"
    file.write_text('checkpoint = "c"\n[source]\npath = "data"\n[[sink]]\nkind = "changes"\npath = "t"\n')
    with pytest.raises(JobError, match=r"job\.toml:3: the option 'path': headrace: .*Not a directory"):
        read_job(file)


@pytest.mark.parametrize("key", ["checkpoint", "deadletter", "position", "schema_file"])
def test_the_jobs_file_is_nothing_that_the_job_writes(tmp_path: Path, key: str) -> None:
    file = tmp_path / "job.toml"
    lines = {"checkpoint": '"checkpoint"', "errors": '"deadletter"', "deadletter": '"refused"'}
    sink = 'kind = "mirror"\npath = "table"\nschema = "infer"\nschema_file = "columns"'
    if key == "position":
        sink = 'kind = "kafka"\nservers = "k:1"\ntopic = "t"\nposition = "job.toml"'
    if key in lines:
        lines[key] = '"./job.toml"'
    if key == "schema_file":
        sink = sink.replace('"columns"', '"job.toml"')
    top = "\n".join(f"{name} = {value}" for name, value in lines.items())
    source = 'uri = "mongodb://h"\ndatabase = "d"\ncollection = "c"\nstartingPosition = "snapshot"'
    text = f"{top}\n[source]\n{source}\n[[sink]]\n{sink}\n"
    file.write_text(text)
    with pytest.raises(JobError, match="and the job's file have one path"):
        read_job(file)


def test_a_database_in_a_file_is_relative_to_the_jobs_file(tmp_path: Path) -> None:
    for given, resolved in [
        ("sqlite:///copy.db", f"sqlite:///{tmp_path}/copy.db"),
        ("sqlite+pysqlite:///a/copy.db?timeout=5", f"sqlite+pysqlite:///{tmp_path}/a/copy.db?timeout=5"),
        ("sqlite:////a/copy.db", "sqlite:////a/copy.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("postgresql:///shop", "postgresql:///shop"),
        ("env:COPY", "env:COPY"),
    ]:
        (sink,) = job_of(tmp_path, sink={"kind": "sql", "uri": given, "table": "t"}).sinks
        assert sink.options["uri"] == resolved
    with pytest.raises(SinkError, match="checkpoint and the database of a sink sql have paths of which one is inside"):
        job_of(tmp_path, sink={"kind": "sql", "uri": "sqlite:///checkpoint/copy.db", "table": "t"})


def test_a_file_that_holds_a_connection_string_is_relative_to_the_jobs_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"server": "mongodb://one", "target": "mongodb://two", "db": "sqlite:///x.db"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    source = {"uri": "file:server", "database": "d", "collection": "c", "startingPosition": "snapshot"}
    sinks = [
        {"kind": "mongodb", "uri": "file:target"}, {"kind": "sql", "uri": "file:db", "table": "t"},
        {"kind": "sql", "uri": "env:DATABASE", "table": "t"},
    ]  # fmt: skip
    monkeypatch.setenv("DATABASE", "sqlite:///y.db")
    job = parse_job({"checkpoint": "cp", "source": source, "sink": sinks}, "job", tmp_path)
    assert job.options.uri == "mongodb://one"
    uris = [sink.options["uri"] for sink in job.sinks]
    assert uris == [f"file:{tmp_path}/target", f"sqlite:///{tmp_path}/x.db", f"sqlite:///{tmp_path}/y.db"]
    for uri in (["file:server", "mongodb://other"], "file:server\nmongodb://other"):
        more = {"source": source | {"uri": uri}, "sink": [{"kind": "mirror", "path": "m"}]}
        several = parse_job({"checkpoint": "cp"} | more, "job", tmp_path)
        assert [one.uri for one in several.options.servers] == ["mongodb://one", "mongodb://other"]
    monkeypatch.setenv("DATABASE", "sqlite:///cp/x.db")
    with pytest.raises(SinkError, match="checkpoint and the database of a sink sql have paths of which one is inside"):
        parse_job({"checkpoint": "cp", "source": source, "sink": sinks[2:]}, "job", tmp_path)


def test_a_database_in_a_file_is_apart_from_what_reset_removes(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/checkpoint/copy.db"
    with pytest.raises(SinkError, match="checkpoint and the database of a sink sql have paths of which one is inside"):
        job_of(tmp_path, sink={"kind": "sql", "uri": uri, "table": "t"})
    sinks = [{"kind": "sql", "uri": uri.replace("checkpoint", "lake"), "table": table} for table in ("t", "u")]
    source = {"uri": "mongodb://h", "database": "d", "collection": "c", "startingPosition": "snapshot"}
    parse_job({"checkpoint": "checkpoint", "source": source, "sink": sinks}, "job", tmp_path)


@pytest.mark.parametrize("url", ["s3://b/lake", "s3a://b/lake", "s3a://b/lake/inside", "s3://b/%6Cake", "s3a://b"])
def test_urls_of_one_folder_of_a_store_are_one_path(tmp_path: Path, url: str) -> None:
    sinks = [{"kind": "mirror", "path": "s3://b/lake"}, {"kind": "history", "path": url}]
    source = {"uri": "mongodb://h", "database": "d", "collection": "c", "startingPosition": "snapshot"}
    with pytest.raises(SinkError, match=r"one path|one is inside the other"):
        parse_job({"checkpoint": "checkpoint", "source": source, "sink": sinks}, "job", tmp_path)


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
    monkeypatch.setattr(job_file, "ignores_case", lambda path: True)
    with pytest.raises(SinkError, match="one path"):
        job_of(tmp_path, checkpoint="Table")


def test_a_file_system_ignores_case_if_it_finds_a_name_in_another_case(tmp_path: Path) -> None:
    (tmp_path / "Folder").mkdir()
    assert not job_file.ignores_case(tmp_path / "Folder" / "not there")
    (tmp_path / "fOLDER").symlink_to(tmp_path / "Folder")
    assert job_file.ignores_case(tmp_path / "Folder")
