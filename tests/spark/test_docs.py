"""The notebooks run as they are written, in the session that all tests share."""

from __future__ import annotations

import ast
import itertools
import json
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
FLIGHTS = ROOT / "examples" / "flights.ipynb"
LAKE = ROOT / "examples" / "lake.ipynb"
TUTORIAL = ROOT / "docs" / "lake.md"


class Shown:
    """What a notebook's `display` answers: it is told when the figure is another."""

    def __init__(self) -> None:
        self.titles: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, figure: Figure, *, display_id: bool) -> Shown:
        assert display_id
        return self

    def update(self, figure: Figure) -> None:
        with self._changed:
            self.titles.append(figure.axes[0].get_title())
            self._changed.notify_all()

    def wait_for_flights(self, count: int) -> None:
        """Return when a figure has had so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(int(title.split()[0]) >= count for title in self.titles), 120)


@pytest.mark.spark
def test_the_notebook_draws_the_delays_as_they_come(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    assert spark
    monkeypatch.setenv("MPLBACKEND", "agg")
    shown, writes = Shown(), itertools.count(1)

    def after_write() -> None:
        number = next(writes)
        if number == 1200:
            shown.wait_for_flights(1)
        if number == 2200:
            shown.wait_for_flights(400)

    names: dict[str, Any] = {"display": shown, "after_write": after_write}
    for text in cells(FLIGHTS):
        quick = text.replace("SECONDS = 20", "SECONDS = 2").replace(
            '"after_write": lambda: None', '"after_write": after_write'
        )
        exec(compile(quick, str(FLIGHTS), "exec"), names)
    assert next(writes) > 2500
    assert shown.titles[-1] == "831 flights have landed"
    assert len(set(shown.titles)) > 2


@pytest.mark.spark
def test_the_notebook_of_two_collections_has_what_its_tutorial_shows(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark
    names: dict[str, Any] = {}
    shown = [last for text in cells(LAKE) if (last := shown_by(text, names)) is not None]
    printed = capsys.readouterr().out
    page = TUTORIAL.read_text("utf-8")
    assert shown[0] == shown[3] == [("customers", True), ("orders", True)]
    assert all(repr(columns) in page for columns in (*shown[1], shown[4]))
    assert re.fullmatch(r"(?!0@)\S{20,}", shown[2][0]["email"]) and shown[2][0] != shown[2][1]
    assert len(printed.splitlines()) == 7 and all(line in page for line in printed.splitlines())
    assert shown[5] in page


def shown_by(text: str, names: dict[str, Any]) -> Any:
    """Runs a cell; what a notebook shows of it, the value of its last line if that is an expression."""
    tree = ast.parse(text)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(LAKE), "exec"), names)
    return eval(compile(ast.Expression(last.value), str(LAKE), "eval"), names) if isinstance(last, ast.Expr) else None


@pytest.mark.parametrize("notebook", [FLIGHTS, LAKE], ids=lambda path: path.stem)
def test_a_notebook_is_small_and_its_cells_are_python(notebook: Path) -> None:
    assert notebook.stat().st_size < 40_000
    for text in cells(notebook):
        compile(text, str(notebook), "exec")


def cells(notebook: Path) -> list[str]:
    given = json.loads(notebook.read_text("utf-8"))
    return ["".join(cell["source"]) for cell in given["cells"] if cell["cell_type"] == "code"]
