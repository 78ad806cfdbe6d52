"""The background: the caller returns when the server listens, or when it has failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, sys
from pathlib import Path
from headrace.cli.background import open_log, run_in_background

def run(announce):
    open_log(Path(sys.argv[1]), append="append" in sys.argv)
    print("in the log")
    if "fail" in sys.argv:
        return 1
    announce("listening")
    os.read(os.open(sys.argv[2], os.O_RDONLY), 1)
    print("ended")
    return 0

sys.exit(run_in_background(run))
"""


def fork(log: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", SCRIPT, str(log), *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


def test_the_caller_returns_once_the_server_listens(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = fork(tmp_path / "log", str(pipe))
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and done.stderr == ""
    assert lines[0].startswith("about to fork") and lines[2] == "listening"
    process = int(lines[1].removeprefix("forked process: "))
    os.kill(process, 0)
    assert os.getsid(process) != os.getsid(0)
    assert (tmp_path / "log").read_text().splitlines() == ["in the log", "listening"]
    pipe.write_bytes(b"x")


def test_the_caller_exits_with_1_when_the_server_fails(tmp_path: Path) -> None:
    done = fork(tmp_path / "log", "fail")
    assert done.returncode == 1 and "child process failed" in done.stderr
    assert (tmp_path / "log").read_text() == "in the log\n"


def test_an_old_log_is_put_aside_or_gone_on_in(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\n")
    fork(log, "fail", "append")
    assert log.read_text() == "old\nin the log\n"
    fork(log, "fail")
    assert log.read_text() == "in the log\n"
    assert sorted(path.read_text() for path in tmp_path.glob("log.*")) == ["old\nin the log\n"]
