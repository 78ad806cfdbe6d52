"""What a batch does to a history: versions of one key whose type changes."""

from __future__ import annotations

from typing import Any

from headrace.spark.rows.events import Row
from headrace.spark.rows.extjson import dumps
from headrace.spark.tables.history_table import VersionChanges
from headrace.spark.tables.progress import Progress


def event(token: str, kind: str, key: Any, **fields: Any) -> Row:
    texts = {name: dumps(value) for name, value in fields.items()}
    return Row(token, operationType=kind, documentKey=dumps({"_id": key}), **texts)


def test_a_replacement_that_changes_the_type_of_a_key_ends_the_one_and_begins_the_other() -> None:
    versions = VersionChanges(Progress(), {}, lambda _: {}, "follow")
    for row in (
        event("1", "insert", 1, fullDocument={"_id": 1}),
        event("2", "replace", 1, fullDocument={"_id": 1.0}),
        event("3", "update", 1.0, updateDescription={"updatedFields": {"n": 1}, "removedFields": []}),
        event("4", "delete", 1.0),
    ):
        versions.take(row)
    spans = [(version.key, version.token, version.until) for version in versions.changed.values()]
    assert spans == [(dumps(1), "1", "2"), (dumps(1.0), "2", "3"), (dumps(1.0), "3", "4")]
