"""A collection read at one cluster time in ranges: every document of that time once, whatever is written meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bson import Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp
from pymongo.database import Database

from headrace.spark.errors import OptionError
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.source.options import parse_options
from headrace.spark.source.readers import BatchReader
from headrace.spark.stream.partitions import key_ranges
from headrace.spark.timetravel.snapshot import NoSnapshotRead
from headrace.values.bson import decode

Db = Database[dict[str, Any]]
KEYS: list[Any] = [
    *range(40), 2.5, float("nan"), Decimal128("7.25"), Int64(1 << 40), *"abc", {"x": 1}, {"x": 2}, None, True, b"ab",
    ObjectId(), MinKey(), MaxKey(),
]  # fmt: skip


def read(options: SourceOptions, part: Any) -> list[tuple[dict[str, Any], str, str]]:
    batches = list(part.read(options, ["fullDocument", "token", "operationType"]))
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [(decode(row["fullDocument"]), row["token"], row["operationType"]) for row in rows]


@pytest.mark.parametrize("partitions", [1, 2, 7, 200])
def test_all_types_of_keys_are_read_once_and_later_writes_do_not_show(uri: str, database: Db, partitions: int) -> None:
    database.c.insert_many([{"_id": key, "n": 0} for key in KEYS])
    expected = sorted(map(repr, database.c.find()))
    options = SourceOptions(uri, database.name, "c", partitions=partitions)
    parts = key_ranges(options, options.partitions)
    assert len(parts) == min(partitions, len(KEYS))
    database.c.update_many({}, {"$set": {"n": 1}})
    database.c.delete_many({"_id": {"$lt": 20}})
    database.c.insert_one({"_id": "later"})
    each = [read(options, part) for part in parts]
    rows = [row for some in each for row in some]
    assert sorted(repr(document) for document, _, _ in rows) == expected
    assert len({token for _, token, _ in rows}) == 1
    assert {kind for _, _, kind in rows} == {"snapshot"}
    if partitions == 7:
        assert max(map(len, each)) <= 2 * min(map(len, each))


def test_an_empty_collection_has_no_rows_and_a_large_one_more_ranges(
    uri: str, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace import limits

    options = SourceOptions(uri, database.name, "c")
    (part,) = key_ranges(options, options.partitions)
    assert read(options, part) == []
    database.c.insert_many([{"_id": number} for number in range(100)])
    monkeypatch.setattr(limits, "SNAPSHOT_RANGE_ROW_COUNT", 10)
    assert len(key_ranges(options, 1)) == 10
    monkeypatch.setattr(limits, "SNAPSHOT_RANGE_COUNT_MAX", 4)
    assert len(key_ranges(options, 1)) == 4


def test_what_is_not_one_collection_is_refused(uri: str, database: Db) -> None:
    def planned(**options: str) -> Any:
        parsed = parse_options({"uri": uri, "database": database.name, "startingposition": "snapshot", **options})
        return BatchReader(parsed, None).partitions()  # type: ignore[arg-type]

    assert planned(collection="c")
    with pytest.raises(OptionError, match="one collection of one server"):
        planned()
    with pytest.raises(OptionError, match="endingPosition"):
        planned(collection="c", endingposition="snapshot")


def test_a_time_that_the_server_does_not_have_is_named(uri: str, database: Db) -> None:
    database.c.insert_one({"_id": 1})
    options = SourceOptions(uri, database.name, "c")
    (part,) = key_ranges(options, 1)
    with pytest.raises(NoSnapshotRead, match="cannot be read at one cluster time"):
        list(replace(part, time=Timestamp(1, 1)).rows(options))
