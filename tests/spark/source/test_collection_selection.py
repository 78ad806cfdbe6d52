"""Which collections names select, in the client and in the stages for the server alike."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.spark.errors import OptionError
from headrace.spark.mongodb.collection_selection import CollectionSelection, namespace_of, parse_selection, text_of
from headrace.spark.source.options import parse_options

NAMES = [
    "orders",
    "orders2",
    "log_a",
    "LOG_a",
    "a.b",
    "log_\n",
    "system.views",
    "tmp.agg_out.1",
    "tmp12345.renameCollection",
    "headrace.positions",
    "headrace.redo",
]


@pytest.mark.parametrize(
    ("database", "patterns", "selected"),
    [
        ("shop", [], {"shop.orders", "shop.orders2", "shop.log_a", "shop.LOG_a", "shop.a.b", "shop.log_\n"}),
        ("shop", ["orders"], {"shop.orders"}),
        ("shop", ["log_*", "a.b"], {"shop.log_a", "shop.log_\n", "shop.a.b"}),
        ("shop", ["*2"], {"shop.orders2"}),
        (None, ["*.orders"], {"shop.orders", "other.orders"}),
        (None, ["s*.a.b", "other.*2"], {"shop.a.b", "other.orders2"}),
        (None, ["*.*"], {f"{db}.{name}" for db in ("shop", "other") for name in NAMES[:6]}),
    ],
)  # fmt: skip
def test_names_select_what_they_say(database: str | None, patterns: list[str], selected: set[str]) -> None:
    selection = parse_selection(database, patterns)
    all_names = [(of, name) for of in ("shop", "other", "admin", "local") for name in NAMES]
    assert {text_of(name) for name in all_names if selection.matches(name)} == selected
    assert CollectionSelection.of(selection.text()) == selection


@pytest.mark.long
@pytest.mark.parametrize("patterns", [["orders"], ["log_*", "a.b"], ["*"], ["x+y*", "ord.rs"]])
def test_the_servers_stages_leave_what_is_selected(uri: str, database: Any, patterns: list[str]) -> None:
    selection = parse_selection(database.name, patterns)
    names = ["orders", "log_a", "a.b", "x+yz", "other"]
    with database.watch(list(selection.stages())) as stream:
        for name in names:
            database[name].insert_one({})
        database.other.rename("orders3")
        database.orders.rename("gone")
        database.end.insert_one({})
        seen = []
        while (change := stream.try_next()) is not None:
            seen.append((change["operationType"], change["ns"]["coll"]))
    wanted = [("insert", name) for name in names] + [("rename", "other"), ("rename", "orders"), ("insert", "end")]
    targets = {"other": "orders3", "orders": "gone"}
    assert seen == [
        (kind, name)
        for kind, name in wanted
        if any(
            selection.matches((database.name, each)) for each in [name, *([targets[name]] if kind == "rename" else [])]
        )
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"database": "d", "collection": "c", "collections": "a"}, "give one"),
        ({"collections": "orders"}, "names no database"),
        ({"database": "d", "collections": "[1]"}, "is an array of names"),
        ({"database": "d", "collections": "[x"}, "not a JSON array"),
        ({"startingPosition": "snapshot", "archive": "x", "database": "d"}, "'archive' is not for"),
        ({"startingPosition": "snapshot", "pipeline": "[]", "database": "d"}, "'pipeline' is not for"),
        ({"onPositionLost": "resnapshot", "database": "d"}, "or startingPosition 'snapshot'"),
        ({"cappedCollections": "x"}, "read, skip"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_options({"uri": "mongodb://localhost"} | options)


def test_names_are_text_or_an_array() -> None:
    for text in ("orders, log_*", '["orders", "log_*"]'):
        options = parse_options({"uri": "mongodb://x", "database": "d", "collections": text})
        assert options.collections == ("orders", "log_*") and not options.several
    assert namespace_of("d.a.b") == ("d", "a.b")
