"""Sessions leave nothing behind: a killed one's directory is removed by the next, a living one's is not."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from headrace.spark.session import jvm


def test_only_the_directory_of_a_process_that_is_gone_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    living, lock = jvm._scratch()
    killed, dropped = jvm._scratch()
    dropped.close()
    starting = tmp_path / "headrace-spark-starting"
    starting.mkdir()
    (starting / "lock").touch()
    newest, other = jvm._scratch()
    assert sorted(tmp_path.iterdir()) == sorted([living, starting, newest])
    assert not killed.exists()
    lock.close()
    other.close()


def test_connection_details_are_not_left_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    running = jvm.Jvm(None, 1, "s", tmp_path, (tmp_path / "lock").open("w"))  # type: ignore[arg-type]
    with jvm.attached(running):
        assert jvm.os.environ["PYSPARK_GATEWAY_PORT"] == "1"
    assert "PYSPARK_GATEWAY_SECRET" not in jvm.os.environ
