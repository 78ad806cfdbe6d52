"""The examples of the page on the pipeline run as they are written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import MongoClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"


@pytest.mark.slow
def test_the_examples_of_the_page_on_the_pipeline_run(
    spark: SparkSession, uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark
    with MongoClient[dict[str, Any]](uri) as client:
        client.drop_database("shop")
        client.shop.orders.insert_many([{"_id": number, "sum": 2.5} for number in range(3)])
    names = {"uri": uri, "checkpoint": str(tmp_path / "checkpoint"), "directory": str(tmp_path)}
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(examples) == 3
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    assert "3 rows, 3 documents" in capsys.readouterr().out
