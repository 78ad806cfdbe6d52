"""Paths of several tables: a name of its own for each collection, and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.sinks.table_paths import (
    PathError,
    check_placeholders,
    escaped,
    overlap,
    path_of,
    tables_at,
    unescaped,
)


@given(st.text(min_size=1, max_size=60), st.text(min_size=1, max_size=60))
def test_each_name_is_another_folder_and_is_read_back(one: str, other: str) -> None:
    one, other = (name.encode(errors="ignore").decode() or "x" for name in (one, other))
    text = escaped(one)
    assert text.isascii() and "/" not in text and text[0] not in "._"
    assert (text == escaped(other)) == (one == other)
    assert len(text) <= 250
    assert unescaped(text) == one or "~~" in text


def test_a_long_name_is_shortened_and_stays_unique() -> None:
    one, other = "ö" * 120, "ö" * 119 + "o"
    assert len(escaped(one)) < 250 and escaped(one) != escaped(other) and unescaped(escaped(one)) is None


def test_the_tables_that_are_there_are_listed(tmp_path: Path) -> None:
    path = f"{tmp_path}/lake/{{database}}/x-{{collection}}/mirror"
    names = [("shop", "orders"), ("shop", "a/b c"), ("two", "_x")]
    for name in names:
        Path(path_of(path, name)).mkdir(parents=True)
    (tmp_path / "lake" / "shop" / "other").mkdir()
    assert sorted(tables_at(path, None)) == sorted(names)
    assert sorted(tables_at(path, "two")) == [("two", "_x")]
    assert list(tables_at(f"{tmp_path}/none/{{collection}}", "shop")) == []


def test_a_path_gives_each_collection_another_table() -> None:
    check_placeholders("lake/{database}/{collection}", None)
    check_placeholders("lake/{collection}", "shop")
    for path, database in (("lake", "shop"), ("lake/{collection}", None), ("{x}/{collection}", "shop"),
                           ("{collection}/{collection}", "shop")):  # fmt: skip
        with pytest.raises(PathError):
            check_placeholders(path, database)


def test_paths_overlap_if_a_name_could_make_them() -> None:
    assert overlap("lake/{database}/{collection}", "lake/shop/orders")
    assert overlap("lake/{database}", "lake/{collection}/mirror")
    assert overlap("lake/m-{collection}", "lake/m-orders")
    assert not overlap("lake/m-{collection}", "lake/h-{collection}")
    assert not overlap("lake/mirror/{collection}", "lake/history/{collection}")
