"""Two processes of pytest take files from one list: each test runs once, and fixtures of folders last."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.file_queue import FileQueue

CONFTEST = """
import pytest

@pytest.fixture(scope="session")
def begun():
    with open("begun", "a") as file:
        file.write("once\\n")
"""
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_it(begun, number):
    with open("ran", "a") as file:
        file.write(f"{__name__} {number}\\n")

@pytest.mark.parametrize("fails", [FAILS])
def test_more(fails):
    assert not fails

@pytest.mark.skip(reason="deselected")
def test_left_out():
    pass
"""


def test_a_list_gives_each_file_once(tmp_path: Path) -> None:
    queue = FileQueue(tmp_path / "list")
    queue.write(["a", "b"])
    assert (queue.take(), queue.names(), queue.take(), queue.take(), queue.names()) == ("a", ["b"], "b", None, [])


@pytest.mark.process
def test_processes_run_each_test_once(tmp_path: Path) -> None:
    names = [f"{folder}/test_{number}.py" for folder in ("one", "two") for number in range(4)]
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.with_name("conftest.py").write_text(CONFTEST.replace("begun", f"begun_{path.parent.name}"))
        text = TESTS.replace("begun", f"begun_{path.parent.name}").replace("FAILS", str(name == "two/test_1.py"))
        path.write_text(text.replace("test_it", f"test_{path.parent.name}"))
    (tmp_path / "two" / "test_9.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "two" / "test_8.py").write_text("def test_left_out(): pass\n")
    queue = FileQueue(tmp_path / "list")
    queue.write([*names, "two/test_8.py", "two/test_9.py"])
    words = "-p no:cacheprovider -p tests.file_queue --file-queue=list --import-mode=importlib -k".split()
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", f"import sys, pytest; sys.path.append({root!r}); sys.exit(pytest.main())", *words]
    processes = [
        subprocess.Popen([*command, "not left_out"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert not queue.names()
    ran = (tmp_path / "ran").read_text().splitlines()
    assert len(ran) == len(set(ran)) == 3 * len(names), outputs
    counts = {"passed": 0, "failed": 0, "error": 0}
    for output in outputs:
        for count, what in re.findall(r"(\d+) (passed|failed|error)", output.splitlines()[-1]):
            counts[what] += int(count)
    assert counts == {"passed": 4 * len(names) - 1, "failed": 1, "error": 1}, outputs
    assert {process.returncode for process in processes} <= {0, 1}
    for folder in ("one", "two"):
        assert len((tmp_path / f"begun_{folder}").read_text().splitlines()) <= 2
