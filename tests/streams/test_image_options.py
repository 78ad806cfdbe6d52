"""How images are asked for: the option of collections and the cluster parameter (the reference, section 4)."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from tests.streams.serving import START_MS, Served, serving, shape

OPTION = "changeStreamPreAndPostImages"
ON = {OPTION: {"enabled": True}}
OFF = {OPTION: {"enabled": False}}


# How the option is given.

SAMPLES: dict[str, tuple[Any, str]] = {
    "array": ([{"enabled": True}], "array"),
    "binary": (b"x", "binData"),
    "code": (Code("x"), "javascript"),
    "date": (DatetimeMS(1), "date"),
    "decimal": (Decimal128("1"), "decimal"),
    "double": (1.5, "double"),
    "empty array": ([], "array"),
    "false": (False, "bool"),
    "int": (1, "int"),
    "long": (Int64(1), "long"),
    "max key": (MaxKey(), "maxKey"),
    "min key": (MinKey(), "minKey"),
    "object": ({"enabled": True}, "object"),
    "object id": (ObjectId(), "objectId"),
    "regex": (Regex("a"), "regex"),
    "string": ("true", "string"),
    "timestamp": (Timestamp(1, 1), "timestamp"),
    "true": (True, "bool"),
    "uuid": (Binary(bytes(16), 4), "binData"),
    "zero": (0, "int"),
}
NOT_AN_OBJECT = {name: sample for name, sample in SAMPLES.items() if name != "object"}
NOT_A_BOOLEAN = {name: sample for name, sample in SAMPLES.items() if sample[1] != "bool"}
UNKNOWN_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "alone": ({"unknown": True}, "unknown"),
    "after enabled": ({"enabled": True, "unknown": 1}, "unknown"),
    "before a wrong enabled": ({"unknown": 1, "enabled": 5}, "unknown"),
    "before enabled": ({"unknown": 1, "enabled": True}, "unknown"),
    "beside a null enabled": ({"enabled": None, "unknown": 1}, "unknown"),
    "expireAfterSeconds": ({"enabled": True, "expireAfterSeconds": 1}, "expireAfterSeconds"),
    "in another case": ({"Enabled": True}, "Enabled"),
    "of a reference": (DBRef("c", 1).as_doc().to_dict(), "$ref"),
    "with a dot": ({"enabled.x": True}, "enabled.x"),
    "with a space": ({" enabled": True}, " enabled"),
    "with no name": ({"": True}, ""),
}
COMMANDS = ("create", "collMod")


def given(at: Served, command: str, value: Any) -> dict[str, Any]:
    """A command with this option, on a new collection or on one that is there."""
    name = at.name()
    if command == "collMod":
        at.must({"create": name})
    return {command: name, OPTION: value}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("sample", NOT_AN_OBJECT)
def test_the_option_is_an_object(at: Served, command: str, sample: str) -> None:
    value, kind = NOT_AN_OBJECT[sample]
    message = f"BSON field '{command}.{OPTION}' is the wrong type '{kind}', expected type 'object'"
    assert at.fails(given(at, command, value)) == (14, message)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("sample", NOT_A_BOOLEAN)
def test_enabled_is_a_boolean_and_nothing_that_could_be_taken_for_one(at: Served, command: str, sample: str) -> None:
    value, kind = NOT_A_BOOLEAN[sample]
    message = f"BSON field '{command}.{OPTION}.enabled' is the wrong type '{kind}', expected type 'bool'"
    assert at.fails(given(at, command, {"enabled": value})) == (14, message)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("value", [{}, {"enabled": None}], ids=["missing", "null"])
def test_enabled_is_required(at: Served, command: str, value: dict[str, Any]) -> None:
    message = f"BSON field '{command}.{OPTION}.enabled' is missing but a required field"
    assert at.fails(given(at, command, value)) == (40414, message)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("row", UNKNOWN_FIELDS)
def test_an_unknown_field_is_refused_before_one_that_is_missing(at: Served, command: str, row: str) -> None:
    value, field = UNKNOWN_FIELDS[row]
    message = f"BSON field '{command}.{OPTION}.{field}' is an unknown field."
    assert at.fails(given(at, command, value)) == (40415, message)


@pytest.mark.parametrize("command", COMMANDS)
def test_of_two_faults_the_first_is_reported(at: Served, command: str) -> None:
    assert at.code(given(at, command, {"enabled": 5, "unknown": 1})) == 14


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("value", [None, {"enabled": True}, {"enabled": False}], ids=["null", "on", "off"])
def test_what_is_given_is_shown_and_null_is_nothing(at: Served, command: str, value: Any) -> None:
    body = given(at, command, value)
    at.must(body)
    reply = at.must({"listCollections": 1, "filter": {"name": body[command]}})
    options = reply["cursor"]["firstBatch"][0]["options"]
    assert options == ({} if value is None else {OPTION: value})


def test_a_view_has_no_images(at: Served) -> None:
    view = at.name()
    assert at.code({"create": view, "viewOn": "x", "pipeline": [], **ON}) == 72
    assert at.code({"create": view, "viewOn": "x", "pipeline": [], **OFF}) == 72
    at.must({"create": view, "viewOn": "x", "pipeline": [], OPTION: None})
    assert at.code({"collMod": view, **ON}) == 72
    assert at.code({"collMod": view, OPTION: 5}) == 14


@pytest.mark.parametrize("database", ["admin", "config", "local"])
def test_images_are_not_stored_of_internal_databases(at: Served, database: str) -> None:
    name = at.name()
    assert at.code({"create": name, **ON}, database) == 72
    at.must({"create": name}, database)
    assert at.code({"collMod": name, **ON}, database) == 72


def test_a_capped_collection_may_have_images(at: Served) -> None:
    at.must({"create": at.name(), "capped": True, "size": 4096, **ON})


def test_create_with_the_same_images_again_is_no_error_and_with_others_is(at: Served) -> None:
    name = at.name()
    at.must({"create": name, **ON})
    at.must({"create": name, **ON})
    assert at.code({"create": name}) == 48
    assert at.code({"create": name, **OFF}) == 48


def test_images_cannot_be_changed_where_there_is_no_collection(at: Served) -> None:
    assert at.code({"collMod": at.name(), **ON}) == 26


# The parameter.


def test_images_last_as_long_as_their_entry_unless_something_else_is_said() -> None:
    with serving() as at:
        assert at.image_seconds() == "off"


EXPIRIES = {
    "decimal": (Decimal128("12"), Int64(12)), "double": (7.0, Int64(7)), "fraction": (7.9, Int64(7)),
    "infinity": (float("inf"), Int64(2**63 - 1)), "int": (10, Int64(10)), "long": (Int64(10), Int64(10)),
    "off": ("off", "off"), "very long": (Int64(2**62), Int64(2**62)),
}  # fmt: skip


@pytest.mark.parametrize("row", EXPIRIES)
def test_the_parameter_is_a_number_of_seconds_or_off(at: Served, row: str) -> None:
    given, stored = EXPIRIES[row]
    at.set_image_seconds(given)
    assert shape(at.image_seconds()) == shape(stored)
    at.tick()
    at.set_image_seconds("off")


def options_with(value: Any) -> dict[str, Any]:
    return {"changeStreamOptions": {"preAndPostImages": {"expireAfterSeconds": value}}}


REFUSED: dict[str, tuple[Any, int]] = {
    "a boolean": (options_with(True), 2),
    "a date": (options_with(DatetimeMS(1)), 2),
    "a fraction of a second": (options_with(0.5), 2),
    "a negative number": (options_with(-1), 2),
    "a text but off": (options_with("unknown"), 2),
    "a timestamp": (options_with(Timestamp(1, 1)), 2),
    "an array": (options_with([1]), 2),
    "an object": (options_with({"n": 1}), 2),
    "an unknown field": ({"changeStreamOptions": {"unknown": 1}}, 2),
    "an unknown field inside": (
        {"changeStreamOptions": {"preAndPostImages": {"expireAfterSeconds": 1, "unknown": 1}}}, 2,
    ),
    "another parameter": ({"changeStreamOption": {"enabled": True}}, 4),
    "images that are a number": ({"changeStreamOptions": {"preAndPostImages": 1}}, 2),
    "no images": ({"changeStreamOptions": {}}, 2),
    "no number": (options_with(float("nan")), 2),
    "no parameter": ({}, 4),
    "no seconds": ({"changeStreamOptions": {"preAndPostImages": {}}}, 2),
    "off in another case": (options_with("Off"), 2),
    "two parameters": ({**options_with(1), "x": {}}, 72),
    "zero": (options_with(0), 2),
}  # fmt: skip


@pytest.mark.parametrize("row", REFUSED)
def test_anything_else_is_refused_and_changes_nothing(at: Served, row: str) -> None:
    value, code = REFUSED[row]
    at.set_image_seconds(5)
    assert at.fails({"setClusterParameter": value}, "admin")[0] == code
    assert at.image_seconds() == 5
    at.set_image_seconds("off")


def test_the_parameter_is_set_and_read_on_admin_and_of_a_replica_set(at: Served) -> None:
    assert at.code({"setClusterParameter": options_with(1)}) == 13
    assert at.code({"getClusterParameter": "changeStreamOptions"}) == 13
    assert at.code({"getClusterParameter": "unknown"}, "admin") == 4
    for asked in ("changeStreamOptions", ["changeStreamOptions"]):
        assert len(at.must({"getClusterParameter": asked}, "admin")["clusterParameters"]) == 1
    with serving(oplog=False) as standalone:
        assert standalone.code({"setClusterParameter": options_with(1)}, "admin") == 20


def test_setting_the_parameter_says_when_it_was_set(at: Served) -> None:
    before = at.now()
    at.set_image_seconds("off")
    (result,) = at.must({"getClusterParameter": "changeStreamOptions"}, "admin")["clusterParameters"]
    assert list(result) == ["_id", "clusterParameterTime", "preAndPostImages"]
    assert before < result["clusterParameterTime"] == at.last_entry()["ts"]
    assert at.clock.now_ms() >= START_MS
