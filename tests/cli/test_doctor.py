"""`headrace doctor` says what is missing, slow or tight."""

from __future__ import annotations

import json
import resource
from itertools import count
from pathlib import Path

import pytest

from headrace.cli import doctor
from headrace.cli.doctor import FAILED, OK, WARNING, examined, fsync_ms
from headrace.cli.main import main


def states(path: Path) -> dict[str, str]:
    return {finding.subject: finding.state for finding in examined(path)}


def test_it_looks_at_versions_the_disk_and_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path), "--json"]) in (0, 1)
    findings = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["packages"]["state"] == OK and "pymongo 4" in findings["packages"]["text"]
    assert str(tmp_path) in findings["disk"]["text"] and findings["python"]["state"] == OK
    assert {"system", "spark", "space", "limits", "memory"} < set(findings)
    main(["doctor", str(tmp_path)])
    assert len(capsys.readouterr().out.splitlines()) == len(findings)


def test_a_folder_without_write_access_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert states(tmp_path / "nosuch")["disk"] == FAILED
    assert main(["doctor", str(tmp_path / "nosuch")]) == 1
    assert "cannot be written" in capsys.readouterr().out


def test_a_slow_disk_and_few_descriptors_are_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count(0.0, 0.05)
    assert fsync_ms(tmp_path, lambda: next(ticks)) == pytest.approx(50)
    monkeypatch.setattr(doctor, "fsync_ms", lambda path: 50.0)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 1024))
    monkeypatch.setattr(doctor, "FREE_BYTES_MIN", 1 << 62)
    after = states(tmp_path)
    assert (after["disk"], after["limits"], after["space"]) == (WARNING, WARNING, WARNING)


def test_spark_without_java_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("headrace.spark.session.jvm.find_spec", lambda name: None)
    assert states(tmp_path)["java"] == FAILED
