"""The demonstration as `make demo` runs it, only quicker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.demo.__main__ import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_a_days_flights_end_in_a_table_that_equals_the_collection(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    assert spark
    assert main(["--days", "1", "--seconds", "2", "--keep", str(tmp_path), "--kind", kind]) == 0
    output = capsys.readouterr().out
    assert "events    2521 of 1 day in " in output
    assert "applied   2521 events" in output
    assert "equal, row for row (838 rows, 838 documents)" in output
