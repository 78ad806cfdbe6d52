"""The archive of Spark's classes is made once, in the background, by the first session that misses it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace import limits
from headrace.spark.session import jvm
from headrace.spark.session.jvm import Java, find_java


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    java = Java(tmp_path / "java", 17)
    jvm.archive_path(java).parent.mkdir(parents=True)
    monkeypatch.setattr(jvm, "find_java", lambda: java)
    return java


def spawned(java: Java, **environ: str) -> list[list[str]]:
    commands: list[list[str]] = []
    assert jvm.make_in_background(java, environ=environ, spawn=commands.append) == bool(commands)
    return commands


def test_it_is_made_if_there_is_none_and_nobody_forbids_it(java: Java) -> None:
    assert [command[-1] for command in spawned(java)] == ["--background"]
    assert spawned(java, HEADRACE_CLASS_CACHE="off") == []
    jvm.archive_path(java).touch()
    assert spawned(java) == []


def test_what_failed_is_tried_again_after_a_day(java: Java, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(java: Java, path: Path) -> None:
        path.write_text("half")
        raise RuntimeError("no Spark")

    monkeypatch.setattr(jvm, "_write", fail)
    with pytest.raises(RuntimeError):
        jvm.make()
    path = jvm.archive_path(java)
    tried = path.with_name(f"{path.name}.tried")
    assert [file.name for file in path.parent.iterdir()] == [tried.name]
    assert spawned(java) == []
    before = tried.stat().st_mtime - limits.CLASS_ARCHIVE_SECONDS_MIN - 1
    os.utime(tried, (before, before))
    assert len(spawned(java)) == 1


def test_it_appears_by_a_rename_and_only_one_process_makes_it(java: Java, monkeypatch: pytest.MonkeyPatch) -> None:
    path = jvm.archive_path(java)

    def write(java: Java, writing: Path) -> None:
        assert jvm.make() is None and not path.exists()
        writing.write_text("classes")

    monkeypatch.setattr(jvm, "_write", write)
    assert jvm.make() == path
    assert [file.name for file in path.parent.iterdir()] == [path.name] and path.read_text() == "classes"


def test_another_build_of_java_has_another_archive(java: Java) -> None:
    java.home.mkdir()
    names = []
    for build in ("17.0.9", "17.0.10"):
        (java.home / "release").write_text(f'JAVA_VERSION="{build}"')
        names.append(jvm.archive_path(java))
    assert len(set(names)) == 2


@pytest.mark.process
@pytest.mark.soak
@pytest.mark.spark
def test_the_run_in_the_background_ends_with_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes half a minute of a processor that nobody else wants."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jvm.make_in_background(find_java(), environ={})
    assert jvm._CHILDREN.pop().wait(timeout=900) == 0
    path = jvm.archive_path(find_java())
    assert [file.name for file in path.parent.iterdir()] == [path.name] and path.stat().st_size > 10_000_000
    assert jvm._archive(find_java())[0] == f"-XX:SharedArchiveFile={path}"
    assert not jvm.make_in_background(find_java(), environ={})
