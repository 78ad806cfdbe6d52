"""Typed mirrors: what comes out is what went in, however the schema changes meanwhile, and each commit is one."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bson import Decimal128, Int64, ObjectId
from bson.datetime_ms import DatetimeMS
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import limits
from headrace.spark.columns.column_types import SchemaError
from headrace.spark.columns.infer import ColumnRules
from headrace.spark.rows.extjson import dumps
from headrace.spark.tables.delta_table import DeltaDocumentTable, delta_mirror
from headrace.spark.tables.fold import MirrorChanges, MirrorRow, MirrorState
from headrace.spark.tables.progress import NotAMirror
from headrace.spark.tables.typed.table_schema import TypedOptions, parse_partition
from tests.spark.columns.test_document_columns import DOCUMENTS

Document = dict[str, Any]


class Mirrored:
    """A typed mirror, and the documents that it should have."""

    def __init__(self, path: Path, options: TypedOptions, buckets: int = 0) -> None:
        self.path, self.options, self.buckets = path, options, buckets
        self.documents: dict[str, str] = {}
        self.commits = 0
        self.mirror = self.opened()

    def opened(self) -> DeltaDocumentTable[MirrorState]:
        return delta_mirror(self.path, self.buckets, self.options)

    def put(self, *documents: Document, gone: tuple[Any, ...] = (), **changes: Any) -> None:
        self.commits += 1
        token = f"82{self.commits:08X}"
        upserts = {dumps(each.get("_id")): MirrorRow(dumps(each), token) for each in documents}
        deletes = {dumps(key) for key in gone}
        state = MirrorState(token, query="q", batch=self.commits)
        self.mirror.commit(MirrorChanges(state, upserts=upserts, deletes=deletes, **changes))
        if changes.get("clear"):
            self.documents.clear()
        self.documents |= {key: row.document for key, row in upserts.items()}
        self.documents = {key: text for key, text in self.documents.items() if key not in deletes}
        self.check()

    def check(self) -> None:
        for mirror in (self.mirror, self.opened()):
            table = mirror.read()
            contents = dict(zip(table.column("_id").to_pylist(), table.column("document").to_pylist(), strict=True))
            assert contents == self.documents
            assert {key: row.document for key, row in mirror.rows(self.documents).items()} == self.documents
            assert mirror.position().batch == self.commits

    def delta(self) -> DeltaTable:
        return DeltaTable(str(self.path))

    def table(self) -> pa.Table:
        return self.delta().to_pyarrow_table()

    def row(self, key: Any) -> Document:
        (row,) = [row for row in self.table().to_pylist() if row["_key"] == dumps(key)]
        return dict(row)


@pytest.fixture
def mirrored(tmp_path: Path) -> Mirrored:
    return Mirrored(tmp_path / "a table", TypedOptions(file=str(tmp_path / "orders.columns")))


NAMES_OF_OTHERS = (
    "__batch_index", "__delta_rs_path", "__delta_rs_source", "__delta_rs_target", "__filename", "__fragment_index",
    "__last_in_fragment", "_bucket", "_gone", "_key", "_server", "_token",
)  # fmt: skip


@pytest.mark.parametrize("buckets", [0, 2])
def test_fields_may_have_the_names_of_columns_that_a_table_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buckets: int
) -> None:
    monkeypatch.setattr(limits, "REWRITTEN_BYTES_MAX", -1)  # no file is small
    mirrored = Mirrored(tmp_path / "table", TypedOptions(), buckets)
    mirrored.put({"_id": 1}, {"_id": 2})
    for name in NAMES_OF_OTHERS:
        mirrored.put({"_id": 3, name: "a"}, {"_id": 1})
        mirrored.put({"_id": 3, name: "b"}, gone=(1,))
        assert "b" in mirrored.row(3).values()


def lines(mirrored: Mirrored) -> list[str]:
    text = Path(mirrored.options.file).read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_new_fields_become_columns_in_the_commit_of_their_data(mirrored: Mirrored) -> None:
    mirrored.put({"_id": 1, "at": {"city": "Oslo"}, "n": 1}, {"_id": 2, "at": {"city": None}})
    mirrored.put({"_id": 3, "tags": [{"x": 1}], "new": 5})
    assert mirrored.delta().version() == mirrored.commits - 1
    mirrored.put({"_id": 2, "at": {"city": "Rome", "zip": "1"}})
    mirrored.put({"_id": 3, "tags": [{"x": 1, "y": "z"}], "n": "text"}, gone=(1,))
    assert mirrored.delta().version() == mirrored.commits - 1
    assert mirrored.row(2)["at"] == {"city": "Rome", "zip": "1"}
    assert mirrored.row(3)["tags"] == [{"x": 1, "y": "z"}] and mirrored.row(3)["_rest"] == '{"n":"text"}'
    assert mirrored.mirror.schema.rest_count == 1
    assert lines(mirrored) == ["_id int", "at struct<city: string, zip: string>", "n int",
                               "tags array<struct<x: int, y: string>>", "new int"]  # fmt: skip


def test_a_number_that_is_wider_widens_the_column_in_one_commit(mirrored: Mirrored) -> None:
    mirrored.put({"_id": 1, "n": 1, "at": {"n": 1}}, {"_id": 2, "n": None}, {"_id": 3})
    for number, value in enumerate([Int64(1 << 40), 0.5, Decimal128("1.50"), Int64(3)]):
        mirrored.put({"_id": 4 + number, "n": value, "at": {"n": value}})
        assert mirrored.delta().version() == mirrored.commits - 1
    assert lines(mirrored)[1:] == ["n int as decimal(38,10)", "at struct<n: int as decimal(38,10)>"]
    assert [row["n"] for row in sorted(mirrored.table().to_pylist(), key=lambda row: row["_id"])][:2] == [1, None]


def test_what_no_longer_fits_a_wider_type_goes_to_the_rest(mirrored: Mirrored) -> None:
    mirrored.put({"_id": 1, "n": Int64((1 << 60) + 1)}, {"_id": 2, "n": Int64(7)})
    mirrored.put({"_id": 3, "n": 0.5})
    assert mirrored.row(1)["n"] is None and mirrored.row(2)["n"] == 7.0
    mirrored.put({"_id": 4, "n": 5e-324})
    assert mirrored.row(4)["n"] == 5e-324


def test_an_edit_of_the_file_holds_from_the_next_start_on(mirrored: Mirrored) -> None:
    mirrored.put({"_id": 1, "n": 1, "name": "x", "more": "y", "at": {"city": "Oslo", "geo": {"lat": 1.5}}})
    file = Path(mirrored.options.file)
    edited = file.read_text().replace("n int", "n string -> number").replace("more string", "more rest")
    file.write_text(edited.replace("at struct<city: string, geo: struct<lat: double>>", "at.city string -> town"))
    mirrored.mirror = mirrored.opened()
    mirrored.put({"_id": 2, "n": "5", "more": "z"})
    assert mirrored.row(2)["number"] == "5" and "more" not in mirrored.row(2)
    assert mirrored.row(1)["town"] == "Oslo" and mirrored.row(1)["number"] is None
    assert mirrored.row(1)["_rest"] == dumps({"n": 1, "more": "y", "at": {"geo": {"lat": 1.5}}})
    assert lines(mirrored) == [
        "_id int", "n string -> number", "name string", "more rest", "at.city string -> town"
    ]  # fmt: skip
    file.write_text("n nonsense")
    with pytest.raises(SchemaError, match="nonsense"):
        mirrored.opened()


def test_a_schema_that_is_given_stays_as_it_is(tmp_path: Path) -> None:
    options = TypedOptions("_id INT, at.city STRING -> town", rules=ColumnRules("none"))
    mirrored = Mirrored(tmp_path / "t", options)
    mirrored.put({"_id": 1, "at": {"city": "Oslo", "zip": "1"}, "n": 1})
    assert mirrored.row(1) == {
        "_key": '{"$numberInt":"1"}', "_token": "8200000001", "_id": 1, "town": "Oslo", "_shape": None,
        "_rest": '{"at":{"zip":"1"},"n":{"$numberInt":"1"}}',
    }  # fmt: skip
    mirrored.options = replace(options, schema="_id INT, at.city STRING -> town, n INT")
    mirrored.mirror = mirrored.opened()
    mirrored.put({"_id": 2, "n": 5})
    assert mirrored.row(2)["n"] == 5


def test_the_first_documents_of_a_collection_and_its_validator_make_the_schema(mirrored: Mirrored) -> None:
    mirrored.mirror.schema.validator = {"properties": {"n": {"bsonType": "long"}, "later": {"bsonType": "date"}}}
    mirrored.put()
    mirrored.put({"_id": ObjectId("a" * 24), "n": 1})
    assert lines(mirrored) == ["n bigint", "later timestamp", "_id objectId"]


@pytest.mark.parametrize("value", ["x" * 300, "é" * 100, "a/b", "..", "\x00\n", "", "__HIVE_DEFAULT_PARTITION__"])
def test_any_text_may_be_the_value_of_a_partition(tmp_path: Path, value: str) -> None:
    mirrored = Mirrored(tmp_path / "t", TypedOptions(partitions=(parse_partition("country"),)))
    mirrored.put({"_id": 1, "country": value}, {"_id": 2})
    mirrored.put({"_id": 1, "country": "DK"}, {"_id": 3, "country": value})
    assert mirrored.row(3)["partition_country"] in (value, None) and mirrored.row(3)["country"] == value


def test_partitions_and_buckets(tmp_path: Path) -> None:
    partitions = (parse_partition("day(at.created)"), parse_partition("country"))
    mirrored = Mirrored(tmp_path / "t", TypedOptions(partitions=partitions, cluster=("n",)), buckets=2)
    mirrored.put({"_id": 1, "at": {"created": DatetimeMS(0)}, "country": "NO"}, {"_id": 2})
    mirrored.put({"_id": 1, "at": {"created": DatetimeMS(90_000_000)}, "country": "DK"}, {"_id": 3, "n": 1})
    mirrored.put({"_id": 3, "n": 0.5}, gone=(2,))
    assert mirrored.delta().metadata().partition_columns == ["_bucket", "day_at_created", "partition_country"]
    assert str(mirrored.row(1)["day_at_created"]) == "1970-01-02" and mirrored.row(1)["partition_country"] == "DK"
    with pytest.raises(NotAMirror, match="2 buckets"):
        delta_mirror(mirrored.path, typed=mirrored.options).position()


def test_a_drop_leaves_the_schema_and_a_new_snapshot_what_it_confirms(mirrored: Mirrored) -> None:
    mirrored.put({"_id": 1, "n": 1})
    mirrored.put({"_id": 2, "m": 1}, clear=True)
    assert lines(mirrored) == ["_id int", "n int", "m int"]
    del mirrored.documents["2" and dumps(2)]
    mirrored.put({"_id": 3, "n": 0.5}, stale_before="8200000003")
    mirrored.documents.clear()
    mirrored.put(stale_before="8200000009")
    mirrored.put({"_id": 3, "n": "x"})


@pytest.mark.long
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(DOCUMENTS, min_size=1, max_size=3), min_size=2, max_size=4),
    st.sampled_from(["add", "widen", "text"]),
    st.sampled_from([frozenset(), None]),
    st.randoms(use_true_random=False),
)
def test_any_documents_in_any_commits_come_out_as_they_went_in(
    tmp_path_factory: pytest.TempPathFactory, commits: list[list[Document]], evolve: str, flatten: Any,
    random_: random.Random,
) -> None:  # fmt: skip
    options = TypedOptions(rules=ColumnRules(evolve, flatten))
    mirrored = Mirrored(tmp_path_factory.mktemp("t") / "t", options)
    for commit in commits:
        documents = [{"_id": random_.randrange(4)} | {k: v for k, v in each.items() if k != "_id"} for each in commit]
        mirrored.put(*{each["_id"]: each for each in documents}.values())
