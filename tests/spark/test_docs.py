"""The notebook runs as it is written, in the session that all tests share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "flights.ipynb"


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
        exec(compile(text.replace("SECONDS = 20", "SECONDS = 10"), str(NOTEBOOK), "exec"), names)
    assert shown.titles[-1] == "831 flights have landed"
    assert len(set(shown.titles)) > 2


def test_the_notebook_is_small_and_its_cells_are_python() -> None:
    assert NOTEBOOK.stat().st_size < 40_000
    for text in cells():
        compile(text, str(NOTEBOOK), "exec")


def cells() -> list[str]:
    notebook = json.loads(NOTEBOOK.read_text("utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
