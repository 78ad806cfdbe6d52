"""Every command's declared fields: a value of each wrong type is refused with MongoDB's code, and none fails inside."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any, Final

import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.commands.catalog import index_specification
from headrace.commands.table import COMMANDS, TEST_COMMANDS
from headrace.commands.writing import bulk_write, delete, update
from headrace.dispatch.arguments import Arguments, Field, Fields, FieldType
from headrace.dispatch.command import Command
from headrace.testing.driven import DrivenServer

pytestmark = pytest.mark.long

EVERY: Final = {command.name: command for command in (COMMANDS | TEST_COMMANDS).values()}
SAMPLES: Final[tuple[Any, ...]] = (
    1.5, math.nan, -math.inf, "", "text", {}, {"a": 1}, {"$a": 1}, [], [1], [{}], Binary(b"x"), Binary(b"\1" * 16, 4),
    ObjectId(), True, False, DatetimeMS(0), Regex("x"), Code("x"), Code("x", {}), 0, -1, 1, Timestamp(1, 1), Int64(-1),
    Int64(2**63 - 1), Decimal128("1.5"), Decimal128("NaN"), Decimal128("-Infinity"), Decimal128("1E+6000"), MinKey(),
    MaxKey(),
)  # fmt: skip
"""At least one value of every BSON type but null, which is the same as absent."""


@pytest.fixture(scope="module")
def server() -> Iterator[DrivenServer]:
    with DrivenServer(enable_test_commands=True) as server:
        server.must("t", {"insert": "c", "documents": [{"_id": number} for number in range(3)]})
        yield server


def database_of(command: Command) -> str:
    return "admin" if command.admin_only else "t"


def beginning(command: Command) -> dict[str, Any]:
    """The command's first field, of a type that it may have."""
    types = command.arguments.by_name[command.name].kind.types
    values = ("c", Int64(1), {"find": "c"}, [], True)
    return {command.name: next(value for value in values if type(value) in types)}


def is_wrong(field: Field[Any], value: Any) -> bool:
    return type(value) not in field.kind.types


def refusals(field: Field[Any]) -> Iterator[tuple[Any, int]]:
    """(a value of a wrong type, the code it gets): of the field, its elements, its own fields."""
    for value in SAMPLES:
        if is_wrong(field, value):
            yield value, 14 if field.error is None else field.error[0]
        elif field.items is not None:
            for item in SAMPLES:
                if type(item) not in field.items.types:
                    yield [item], 14 if field.items_error is None else field.items_error[0]
    if field.fields is not None:
        for inner in field.fields.by_name.values():
            yield from (({inner.name: value}, code) for value, code in refusals(inner))


@pytest.mark.parametrize("name", sorted(EVERY))
def test_a_value_of_a_wrong_type_is_refused(server: DrivenServer, name: str) -> None:
    command = EVERY[name]
    for field in command.arguments.by_name.values():
        if field.name == "$db":
            continue
        for value, code in refusals(field):
            reply = server.run(database_of(command), {**beginning(command), field.name: value})
            assert isinstance(reply, dict) and reply.get("code") == code, (field.name, value, reply)
            if code == 14 and field.error is None and is_wrong(field, value) and type(field.kind) is FieldType:
                struct = "FindCommandRequest" if name == "find" else name
                message = f"BSON field '{struct}.{field.name}' is the wrong type '"
                assert reply["errmsg"].startswith(message) and "', expected type" in reply["errmsg"]


@pytest.mark.parametrize("name", sorted(EVERY.keys() - {"shutdown"}))
def test_no_value_of_a_right_type_fails_inside_the_server(name: str) -> None:
    """An exception of a command other than `CommandError` would be error 1 at a client; here it is raised."""
    command = EVERY[name]
    with_generic = name in ("aggregate", "find", "getMore", "insert", "update")
    fields = command.arguments if with_generic else command.fields
    with DrivenServer(enable_test_commands=True) as server:
        for field in fields.by_name.values():
            for value in (None, *(value for value in SAMPLES if not is_wrong(field, value))):
                if field.name != "$db":
                    server.run(database_of(command), {**beginning(command), field.name: value})


STATEMENTS: Final[dict[str, tuple[Fields, Any]]] = {
    "bulkWrite.ops of a delete": (bulk_write.OPERATIONS["delete"], ("ops", {"delete": 0})),
    "bulkWrite.ops of an insert": (bulk_write.OPERATIONS["insert"], ("ops", {"insert": 0})),
    "bulkWrite.ops of an update": (bulk_write.OPERATIONS["update"], ("ops", {"update": 0})),
    "createIndexes.indexes": (index_specification.SPECIFICATION, ("indexes", {})),
    "delete.deletes": (delete.STATEMENT, ("deletes", {})),
    "update.updates": (update.STATEMENT, ("updates", {})),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_value_of_a_wrong_type_in_a_statement_is_refused(server: DrivenServer, name: str) -> None:
    fields, (array, begun) = STATEMENTS[name]
    command = name.partition(".")[0]
    for field in fields.by_name.values():
        for value, code in refusals(field):
            body: dict[str, Any] = {command: "c", array: [{**begun, field.name: value}]}
            if command == "bulkWrite":
                body["nsInfo"] = [{"ns": "t.c"}]
            reply = server.run("admin" if command == "bulkWrite" else "t", body)
            assert isinstance(reply, dict) and reply.get("code") == code, (field.name, value, reply)


@pytest.mark.parametrize("value", [Binary(b"x"), "x", 1, [1]], ids=str)
def test_statements_are_documents(server: DrivenServer, value: Any) -> None:
    for command, array in (("insert", "documents"), ("update", "updates"), ("delete", "deletes")):
        assert server.run("t", {command: "c", array: [value]})["code"] == 14
        assert server.run("t", {command: "c"})["code"] == server.run("t", {command: "c", array: None})["code"] == 40414


def test_a_missing_field_comes_after_what_is_wrong_with_those_that_are_there(server: DrivenServer) -> None:
    assert server.run("t", {"distinct": "c"})["code"] == 40414
    assert server.run("t", {"distinct": "c", "nope": 1})["code"] == 40415
    assert server.run("t", {"distinct": "c", "query": 1, "nope": 1})["code"] == 14
    assert server.run("t", {"distinct": "c", "nope": 1, "query": 1})["code"] == 40415
    assert server.run("t", {"distinct": "c", "key": None})["code"] == 40414


def test_a_command_that_declares_no_fields_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="fields"):
        Command("x", lambda context, request: {})  # type: ignore[call-arg]
    assert inspect.signature(Command).parameters["fields"].default is inspect.Parameter.empty
    assert all(isinstance(command.arguments, Arguments) for command in EVERY.values())


def test_no_field_is_declared_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        Fields(Field("a", update.SORT.kind, None), Field("a", update.SORT.kind, None))


def test_a_list_of_types_has_mongodbs_wording(server: DrivenServer) -> None:
    for body, path, types in (
        ({"find": "c", "limit": "x"}, "FindCommandRequest.limit", "types '[long, int, decimal, double]'"),
        ({"find": "c", "let": 1}, "FindCommandRequest.let", "type 'object'"),
        ({"findAndModify": "c", "new": "x"}, "findAndModify.new", "types '[bool, long, int, decimal, double]'"),
        ({"insert": "c", "ordered": "x"}, "insert.ordered", "type 'bool'"),
        ({"find": "c", "readConcern": {"level": 1}}, "readConcern.level", "type 'string'"),
    ):
        shown = "string" if "x" in body.values() else "int"
        reply = server.run("t", body)
        assert reply["errmsg"] == f"BSON field '{path}' is the wrong type '{shown}', expected {types}"


@pytest.mark.parametrize("value", [None, 1, 0.0, "x"], ids=str)
def test_a_flag_of_a_find_is_a_boolean_and_its_objects_are_not_null(server: DrivenServer, value: Any) -> None:
    shown = {None: "null", 1: "int", 0.0: "double", "x": "string"}[value]
    for flag in ("allowDiskUse", "allowPartialResults", "awaitData", "returnKey", "showRecordId", "singleBatch"):
        reply = server.run("t", {"find": "c", flag: value})
        message = f"Field '{flag}' should be a boolean value, but found: {shown}"
        assert (reply["code"], reply["errmsg"]) == (14, message)
    for name in ("collation", "filter", "max", "min", "projection", "sort"):
        reply = server.run("t", {"find": "c", name: value})
        assert (reply["code"], reply["errmsg"]) == (14, f"Expected field {name}to be of type object")
    explained = server.run("t", {"aggregate": "c", "pipeline": [], "cursor": {}, "explain": value})
    assert (explained["code"], explained["errmsg"]) == (14, "explain must be a boolean")


@pytest.mark.parametrize(
    ("limit", "code", "message"),
    [
        (1.5, 9, "Expected an integer: limit: 1.5"),
        (Decimal128("1.5"), 9, "Cannot represent as a 64-bit integer: limit: 1.5"),
        (Int64(-(2**63)), 2, "limit value for count cannot be min long"),
        (None, 2, "limit value is not a valid number"),
        ("x", 2, "limit value is not a valid number"),
    ],
    ids=str,
)
def test_the_limit_of_a_count_is_an_integer(server: DrivenServer, limit: Any, code: int, message: str) -> None:
    reply = server.run("t", {"count": "c", "limit": limit})
    assert (reply["code"], reply["errmsg"]) == (code, message)
    assert server.must("t", {"count": "c", "limit": -2})["n"] == 2


@pytest.mark.parametrize(
    ("value", "code", "message"),
    [
        (1.5, 9, "Expected an integer: maxTimeMS: 1.5"),
        (Decimal128("1.5"), 9, "Cannot represent as a 64-bit integer: maxTimeMS: 1.5"),
        (-1, 2, "BSON field 'maxTimeMS' value must be >= 0, actual value '-1'"),
        (2**31, 2, "BSON field 'maxTimeMS' value must be <= 2147483647, actual value '2147483648'"),
    ],
    ids=str,
)
def test_a_time_is_a_number_of_milliseconds(server: DrivenServer, value: Any, code: int, message: str) -> None:
    reply = server.run("t", {"find": "c", "maxTimeMS": Int64(value) if value == 2**31 else value})
    assert (reply["code"], reply["errmsg"]) == (code, message)
