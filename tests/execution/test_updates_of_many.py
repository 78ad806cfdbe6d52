"""Updates and deletes of many: some documents at a time they do what they do to one after the other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import Int64

from headrace import limits
from headrace.commands.writing import delete
from headrace.execution.writes import updates
from headrace.store.check.directory import check
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.values.bson import decode, encode
from tests.store.test_index_entries import VALUES

INDEXES: list[dict[str, Any]] = [
    {"key": {"a": 1}, "name": "a"},
    {"key": {"b.c": -1, "a": 1}, "name": "bc_a"},
    {"key": {"d": 1}, "name": "partial", "partialFilterExpression": {"a": {"$gt": 2}}},
    {"key": {"u": 1}, "name": "unique", "unique": True, "sparse": True},
    {"key": {"$**": 1}, "name": "all"},
    {"key": {"b": "text"}, "name": "text"},
]


def documents(chooser: random.Random) -> list[dict[str, Any]]:
    made = []
    for number in range(60):
        names = chooser.sample("abd", chooser.randint(0, 3))
        made.append({"_id": number, **{name: chooser.choice(VALUES) for name in names}})
        if chooser.random() < 0.3:
            made[-1]["u"] = number
    return made


def change(chooser: random.Random) -> dict[str, Any]:
    """An update of many, which some document may refuse."""
    path = chooser.choice(["a", "a", "b", "b.c", "b.0", "d", "n", "n.m", "u"])
    value = chooser.choice(VALUES)
    changes: dict[str, Any] = {}
    for operator in chooser.sample(["$set", "$inc", "$unset", "$push", "$rename", "$min"], chooser.choice([1, 1, 2])):
        if operator == "$rename":
            changes[operator] = {chooser.choice("abd"): chooser.choice(["b", "r", "r.s"])}
        elif operator == "$inc":
            changes[operator] = {chooser.choice(["a", "d", "k"]): chooser.choice([1, 0, 1.5, Int64(2**40)])}
        else:
            changes[operator] = {path: value, **({"e": 1} if chooser.random() < 0.3 else {})}
    return changes


def command(chooser: random.Random) -> dict[str, Any]:
    low = chooser.randrange(60)
    bounds = {"$gte": low, "$lt": low + chooser.choice([2, 10, 60])}
    filters: list[dict[str, Any]] = [
        {"_id": bounds}, {"_id": bounds}, {}, {"a": chooser.choice(VALUES)}, {"b.c": {"$exists": True}},
        {"$or": [{"a": 1}, {"d": {"$type": "string"}}]}, {"$expr": {"$lt": ["$_id", low]}}, {"_id": low},
    ]  # fmt: skip
    wanted = chooser.choice(filters)
    if chooser.random() < 0.25:
        return {"delete": "c", "deletes": [{"q": {"_id": bounds, **wanted}, "limit": 0}]}
    return {"update": "c", "updates": [{"q": wanted, "u": change(chooser), "multi": True}]}


def log(at: DrivenServer) -> Iterator[bytes]:
    """All entries, without the collection's UUID, which is random."""
    with at.store.reading() as view:
        for _, raw in view.entries(0):
            entry = decode(raw)
            entry.pop("ui", None)
            yield encode(entry)


def rows(at: DrivenServer, table: str) -> list[tuple[bytes, bytes]]:
    with at.store.reading() as view:
        return list(view.kv.cursor(view.tables[table]).iternext())


@pytest.mark.parametrize(
    "options", [{}, {"changeStreamPreAndPostImages": {"enabled": True}}, {"validator": {"z": None}}]
)
@pytest.mark.parametrize("indexes", [[], INDEXES[:1], INDEXES])
@pytest.mark.parametrize("decoded_count", [0, limits.DECODED_COUNT])
def test_many_documents_at_once_are_changed_as_each_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], indexes: list[Any], decoded_count: int
) -> None:
    """Bytes, entries, keys in indexes and replies are the same; so is the place where a document refuses the update."""
    monkeypatch.setattr(limits, "DECODED_COUNT", decoded_count)
    monkeypatch.setattr("headrace.execution.writes.matches.BATCH_COUNT", 16)
    by_slices, replaced = updates.sliced_update, []

    def noted(*arguments: Any) -> Any:
        made = by_slices(*arguments)
        replaced.append(made is not None)
        return made

    for seed in range(2):
        chooser = random.Random(seed)
        made, commands = documents(chooser), [command(chooser) for _ in range(25)]
        with (
            DrivenServer(tmp_path / f"many{seed}", clock=FakeClock()) as many,
            DrivenServer(tmp_path / f"each{seed}", clock=FakeClock()) as each,
        ):
            for at in (many, each):
                at.must("t", {"create": "c", **options})
                if indexes:
                    at.must("t", {"createIndexes": "c", "indexes": indexes})
                at.run("t", {"insert": "c", "documents": made, "ordered": False})
            for body in commands:
                with monkeypatch.context() as patch:
                    patch.setattr(updates, "sliced_update", noted)
                    reply = many.run("t", body) if chooser.random() < 0.5 else many.in_turns("t", body)[0]
                with monkeypatch.context() as patch:
                    patch.setattr(updates, "sliced_update", lambda *arguments: None)
                    patch.setattr(delete, "are_unchanged", lambda *arguments: False)
                    assert reply == each.in_turns("t", body)[0], body
                for table in ("documents", "ids", "indexes"):
                    assert rows(many, table) == rows(each, table), body
            assert list(log(many)) == list(log(each))
            assert len(rows(many, "images")) == len(rows(each, "images"))
            assert many.run("t", {"count": "c"}) == each.run("t", {"count": "c"})
        assert check(tmp_path / f"many{seed}").problems == []
    assert sum(replaced) > 15
