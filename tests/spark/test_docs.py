"""The page on the pipeline and the notebook run as they are written, in the session that all tests share."""

from __future__ import annotations

import json
import re
import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.cli.main import main

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "pipeline.md"
NOTEBOOK = ROOT / "examples" / "flights.ipynb"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.spark
def test_the_examples_of_the_page_on_the_pipeline_run(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spark
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    printed, everything, ran = "", "", set()
    for language, text in FENCE.findall(PAGE.read_text().replace("27017", str(free_port()))):
        ran.add(language)
        if language == "python":
            exec(compile(text, str(PAGE), "exec"), names)
            printed = capsys.readouterr().out
            everything += printed
        elif language == "console":
            for line in text.splitlines():
                prompt, program, *arguments = shlex.split(line)
                assert (prompt, program, main(arguments)) == ("$", "headrace", 0), line
            capsys.readouterr()
        elif language == "toml":
            (tmp_path / text.partition("\n")[0].removeprefix("# ")).write_text(text)
        elif language == "text":
            assert printed.strip() == text.strip()
    assert "3 rows, 3 documents" in everything
    assert ran == {"console", "python", "text", "toml"}


class Shown:
    """What a notebook's `display` answers: it is told when the figure is another."""

    def __init__(self) -> None:
        self.titles: list[str] = []

    def __call__(self, figure: Figure, *, display_id: bool) -> Shown:
        assert display_id
        return self

    def update(self, figure: Figure) -> None:
        self.titles.append(figure.axes[0].get_title())


@pytest.mark.spark
def test_the_notebook_draws_the_delays_as_they_come(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    assert spark
    monkeypatch.setenv("MPLBACKEND", "agg")
    shown = Shown()
    names: dict[str, Any] = {"display": shown}
    for text in cells():
        exec(compile(text.replace("SECONDS = 20", "SECONDS = 5"), str(NOTEBOOK), "exec"), names)
    assert shown.titles[-1] == "831 flights have landed"
    assert len(set(shown.titles)) > 2


def test_the_notebook_is_small_and_its_cells_are_python() -> None:
    assert NOTEBOOK.stat().st_size < 40_000
    for text in cells():
        compile(text, str(NOTEBOOK), "exec")


def cells() -> list[str]:
    notebook = json.loads(NOTEBOOK.read_text("utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
