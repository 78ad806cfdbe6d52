"""Sessions leave nothing behind: a killed one's directory is removed by the next, a living one's is not."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

from headrace.spark.session import jvm
from headrace.spark.session.jvm import Java, find_java


def test_only_the_directory_of_a_process_that_is_gone_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(jvm, "_HELD", [])
    living, killed = jvm._scratch(), jvm._scratch()
    jvm._HELD.pop().close()
    starting = tmp_path / "headrace-spark-starting"
    starting.mkdir()
    (starting / "lock").touch()
    newest = jvm._scratch()
    assert sorted(tmp_path.iterdir()) == sorted([living, starting, newest])
    assert not killed.exists()
    for lock in jvm._HELD:
        lock.close()


def test_connection_details_are_not_left_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    running = jvm.Jvm(None, 1, "s", tmp_path)  # type: ignore[arg-type]
    with jvm.attached(running):
        assert jvm.os.environ["PYSPARK_GATEWAY_PORT"] == "1"
    assert "PYSPARK_GATEWAY_SECRET" not in jvm.os.environ


@pytest.mark.process
def test_a_quick_session_has_as_much_room_for_compiled_code_as_another() -> None:
    java = str(find_java().command)
    command = [java, *jvm._STARTS_SOON, *jvm.QUICK, "-XX:+PrintFlagsFinal", "-version"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    flags = {words[1]: words[3] for words in map(str.split, done.stdout.splitlines()) if words[2:3] == ["="]}
    assert (flags["ReservedCodeCacheSize"], flags["UsePerfData"]) == (str(240 << 20), "false")


@pytest.mark.process
def test_java_takes_the_options_of_a_start_without_a_warning() -> None:
    java = find_java()
    command = [str(java.command), *jvm._ALWAYS, *jvm._STARTS_SOON, *jvm._UNVERIFIED, "-version"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "warning" not in f"{done.stdout}{done.stderr}".lower()


def test_classes_are_not_verified_again_and_again_where_there_is_no_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    java = Java(tmp_path / "jdk", 17)
    assert jvm._archive(java) == list(jvm._UNVERIFIED)
    assert jvm._archive(Java(tmp_path / "jdk", 25)) == []
    path = jvm.archive_path(java)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    assert jvm._archive(java)[0] == f"-XX:SharedArchiveFile={path}"


def test_spark_looks_for_packages_with_sources_only_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "one").mkdir()
    environ = jvm._environment(tmp_path / "none", local=True)
    assert not Path(environ["PYSPARK_DRIVER_PYTHON"]).exists()
    (tmp_path / "packages" / "pyspark_weather").mkdir(parents=True)
    (tmp_path / "packages" / "pyspark_weather" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    assert "PYSPARK_DRIVER_PYTHON" not in jvm._environment(tmp_path / "one", local=True)
