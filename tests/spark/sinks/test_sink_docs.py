"""Each kind of sink has its page; the example of a sink of one's own keeps the contract."""

from __future__ import annotations

import re
import sqlite3
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace.spark.sinks.sink_options import KINDS, parse_sink
from headrace.spark.sinks.typed_options import TYPED_OPTIONS
from tests.spark.support.generated_changes import batches, generated_changes

PAGES = Path(__file__).resolve().parents[3] / "docs" / "sinks"


def blocks(kind: str, language: str) -> list[str]:
    text = (PAGES / f"{kind}.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_a_page_whose_options_are_those_of_the_sink(kind: str, tmp_path: Path) -> None:
    first, *others = [given for block in blocks(kind, "toml") for given in tomllib.loads(block)["sink"]]
    assert {parse_sink(given, tmp_path).kind for given in (first, *others)} == {kind}
    assert KINDS[kind].options - TYPED_OPTIONS - {"omit"} <= first.keys()
    assert KINDS[kind].options <= {name for given in (first, *others) for name in given}


def test_the_custom_sink_counts_each_event_once(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    (example,) = blocks("own", "python")
    exec(compile(example, "own.md", "exec"), names)
    changes = generated_changes(9)
    for query in ("q", "another"):
        for batch in batches(changes.row_batches, query):
            for _ in range(2):
                names["OrderCounts"](tmp_path / "counts.db").apply(batch)
    with sqlite3.connect(tmp_path / "counts.db") as file:
        counts = dict(file.execute("select kind, number from counts"))
    assert counts == Counter(row.operationType for row_batch in changes.row_batches for row in row_batch)
