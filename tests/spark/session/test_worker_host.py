"""The host of Spark's Python processes: later ones are copies of it as of a launcher, and end with their launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.spark.session import jvm, worker_launcher
from tests.spark.support.processes import children
from tests.waiting import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Spark starts each process anew"),
]

CHECKOUT = Path(__file__).parents[3]
SOURCE = """
import os, sys, time
print(os.getpid(), os.getcwd(), os.environ["NAME"], __name__, sys.argv[1], sys.stdin.readline().strip(), flush=True)
print("an error", file=sys.stderr, flush=True)
time.sleep(0 if os.environ["NAME"] == "short" else 600)
"""


class Session:
    """A scratch directory as of a session, with the program that Spark runs, and a module as a source."""

    def __init__(self, folder: Path) -> None:
        self.scratch = jvm._scratch()
        self.folder = folder
        (folder / "a_source.py").write_text(SOURCE)
        self.started: list[subprocess.Popen[str]] = []

    def start(self, name: str, folder: Path | None = None, **environ: str) -> tuple[int, list[str]]:
        """Start a source; return its process and the rest of what it says."""
        # Not this process's own path, into which tests put folders.
        path = os.pathsep.join([str(self.folder), str(CHECKOUT)])
        launch = [sys.executable, "-IS", worker_launcher.__file__, sys.executable]
        process = subprocess.Popen(
            [*launch, str(self.scratch / "workers"), "a_source", "an argument"],
            env=os.environ | {"NAME": name, "PYTHONPATH": path} | environ, cwd=folder or self.folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.started.append(process)
        assert process.stdin and process.stdout
        process.stdin.write("its input\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, process.communicate()
        pid, *words = line.split(maxsplit=4)
        return int(pid), [word.strip() for word in words]

    def host(self) -> int:
        """Return the host: the process that the first source has started, when it is ready."""
        until((self.scratch / "workers").exists)
        return children(self.started[0].pid)[0]

    def end(self) -> None:
        for lock in jvm._HELD:
            lock.close()
        for process in self.started:
            process.kill()
            process.communicate()


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setattr(jvm, "_HELD", [])
    session = Session(tmp_path)
    yield session
    session.end()


def is_running(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_second_source_is_a_copy_with_its_own_surroundings(session: Session, tmp_path: Path) -> None:
    first, said = session.start("first")
    assert first == session.started[0].pid and said == [str(tmp_path), "first", "__main__", "an argument its input"]
    (tmp_path / "other").mkdir()
    session.host()
    for name in ("second", "third"):
        copy, said = session.start(name, tmp_path / "other")
        assert said == [str(tmp_path / "other"), name, "__main__", "an argument its input"]
        assert copy in children(session.host())


def test_a_source_that_has_ended_ends_its_launcher_and_closes_its_output(session: Session) -> None:
    session.start("first")
    session.host()
    session.start("short")
    out, error = session.started[1].communicate(timeout=240)
    assert (out, error, session.started[1].returncode) == ("", "an error\n", 0)


def test_a_copy_ends_with_its_launcher_and_no_other_does(session: Session) -> None:
    first, _ = session.start("first")
    session.host()
    second, _ = session.start("second")
    third, _ = session.start("third")
    session.started[1].terminate()
    until(lambda: not is_running(second))
    session.started[0].terminate()
    until(lambda: not is_running(first))
    assert is_running(third)
    fourth, _ = session.start("fourth")
    assert fourth != session.started[3].pid and is_running(third)


def test_the_host_ends_with_the_program_that_started_the_session(session: Session) -> None:
    session.start("first")
    host = session.host()
    for lock in jvm._HELD:
        lock.close()
    until(lambda: not is_running(host))


def test_a_source_without_a_host_makes_a_new_one(session: Session) -> None:
    session.start("first")
    host = session.host()
    os.kill(host, signal.SIGKILL)
    until(lambda: not is_running(host))
    (session.scratch / "workers").unlink()
    second, _ = session.start("second")
    assert second == session.started[1].pid
    until((session.scratch / "workers").exists)
    third, _ = session.start("third")
    assert third != session.started[2].pid


def test_a_process_that_python_would_begin_otherwise_is_no_copy(session: Session) -> None:
    session.start("first")
    session.host()
    second, _ = session.start("second", OMP_NUM_THREADS="4")
    assert second == session.started[1].pid


def test_every_other_program_of_spark_is_python_itself(tmp_path: Path) -> None:
    program = worker_launcher.program(str(tmp_path), sys.executable)
    done = subprocess.run(
        [program, "-c", "import sys; print(sys.argv, sys.executable)", "a b"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["['-c',", "'a", "b']", sys.executable]
    (tmp_path / "lock").touch()
    module = [program, "-m", "pyspark.sql.worker.create_data_source"]
    done = subprocess.run(module, capture_output=True, text=True, check=False)
    assert "get_sock_file_to_executor" in done.stderr
    assert (tmp_path / "workers").is_socket()
    (tmp_path / "lock").unlink()
