"""The fields of commands. Each is declared once, beside its command, and one parser reads the declarations.

    LIMIT: Final = number("limit", least=0)
    FIELDS: Final = Fields(document("filter"), LIMIT, ...)
    COMMAND: Final = Command("find", run, FIELDS)          # the generic fields are added to each command's own

`Command.arguments.check` runs before the command. It goes through the request's fields in their order and raises for
the first that is not declared (40415), of a wrong type (14, or the declaration's own error) or out of range; then for a
required field that is missing (40414). Afterwards `LIMIT.of(body)` returns the converted value, or the declared
default.

The rules are those of MongoDB's IDL parser:
- Null is the same as absent, unless a field has an error of its own.
- Fields that begin with a dollar sign belong to the drivers.
- The fields of a nested document are declared and checked in the same way.
The messages are MongoDB's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Final, Generic, TypeVar, overload

from bson import Binary

from headrace import limits
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.query.expressions.numbers import to_long, truthy
from headrace.values.bson import find_element, iter_elements, type_name, types_named, value_of

T = TypeVar("T")
Check = Callable[[str, Any], None]
"""A function of a field's path and value that raises `CommandError`. The value has the right type."""
Error = tuple[int, str]
"""Code and message of the error for a wrong type, if it is not error 14."""


@dataclass(frozen=True, slots=True)
class FieldType:
    """The BSON types that a field accepts, with MongoDB's names and in its order. `convert` converts their values."""

    names: tuple[str, ...]
    convert: Callable[[Any], Any] | None = None
    native: type | None = None
    """Values of this Python type need no conversion."""
    takes_null: ClassVar[bool] = True
    """Whether null is the same as no value."""

    @property
    def types(self) -> frozenset[type]:
        """The Python types of the values."""
        return types_named(*self.names)

    def error(self, path: str, value: Any) -> CommandError:
        """Return the error for a value of any other type."""
        expected = f"type '{self.names[0]}'" if len(self.names) == 1 else f"types '[{', '.join(self.names)}]'"
        return CommandError(14, f"BSON field '{path}' is the wrong type '{type_name(value)}', expected {expected}")


class _OptionalBool(FieldType):
    """A boolean that is no number and not null, as the flags of a find are."""

    takes_null = False

    def error(self, path: str, value: Any) -> CommandError:
        """Return the error for a value of any other type."""
        name = path.rpartition(".")[2]
        return CommandError(14, f"Field '{name}' should be a boolean value, but found: {type_name(value)}")


class _OwnedObject(FieldType):
    """An object that is not null. The words of the message run together in MongoDB, too."""

    takes_null = False

    def error(self, path: str, value: Any) -> CommandError:
        """Return the error for a value of any other type."""
        return CommandError(14, f"Expected field {path.rpartition('.')[2]}to be of type object")


_ANY: Final = (
    "double", "string", "object", "array", "binData", "objectId", "bool", "date", "regex", "javascript", "int",
    "timestamp", "long", "decimal", "minKey", "maxKey",
)  # fmt: skip
TYPES: Final = {
    "any": FieldType(_ANY),
    "anyBool": FieldType(_ANY, truthy, bool),  # for commands without an IDL: false, null and 0 are false, others true
    "array": FieldType(("array",)),
    "binData": FieldType(("binData",)),
    "bool": FieldType(("bool", "long", "int", "decimal", "double"), truthy, bool),  # MongoDB's safeBool
    "int": FieldType(("int",)),
    "long": FieldType(("long",)),
    "number": FieldType(("long", "int", "decimal", "double"), to_long, int),  # safeInt64: cut to 64 bits; a NaN is 0
    "object": FieldType(("object",)),
    "objectId": FieldType(("objectId",)),
    "optionalBool": _OptionalBool(("bool",)),
    "ownedObject": _OwnedObject(("object",)),
    "strictBool": FieldType(("bool",)),
    "string": FieldType(("string",)),
    "timestamp": FieldType(("timestamp",)),
}  # fmt: skip
"""The types of fields, by their names in declarations."""
_NULL: Final[frozenset[type]] = frozenset({type(None)})


@cache
def _joined(types: frozenset[type], more: frozenset[type]) -> frozenset[type]:
    """Return one set for all fields of a type: the fields of all commands would take 2 MB."""
    return types | more


class Field(Generic[T]):
    """One declared field; `T` is the Python type that `of` returns.

    `kind` is a name in `TYPES` or a `FieldType`. `fields` declares the fields of a document, `items` the type of an
    array's elements. `check` is called for rules that the type does not express; with `least`, only for a smaller
    number. `error` and `items_error` replace error 14 where MongoDB has another.
    """

    __slots__ = (
        "_convert", "_native", "_types", "check", "default", "error", "fields", "items", "items_error", "kind", "least",
        "name", "required",
    )  # fmt: skip

    def __init__(
        self, name: str, kind: FieldType | str, default: T, *, required: bool = False, fields: Fields | None = None,
        items: str | None = None, check: Check | None = None, error: Error | None = None,
        items_error: Error | None = None, least: int | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.kind = kind if isinstance(kind, FieldType) else TYPES[kind]
        self.default = default
        self.required = required
        self.fields = fields
        self.items = None if items is None else TYPES[items]
        self.check = check
        self.error = error
        self.items_error = items_error
        self.least = least
        self._types = self.kind.types
        self._convert = self.kind.convert
        self._native = self.kind.native

    def of(self, body: dict[str, Any]) -> T:
        """Return the field's value in a checked document; the default if the field is absent or null."""
        value = body.get(self.name)
        if value is None:
            return self.default
        if self._convert is None or type(value) is self._native:
            return value  # type: ignore[no-any-return]
        return self._convert(value)  # type: ignore[no-any-return]

    @property
    def accepted(self) -> frozenset[type]:
        """The Python types whose values need no further check."""
        absent = _NULL if self.error is None and self.kind.takes_null else frozenset()
        if self.check is not None or self.fields is not None or self.items is not None:
            return absent
        return _joined(self._types, absent)

    def examine(self, path: str, value: Any) -> None:
        """Raise the error for a wrong value."""
        if value is None and self.error is None and self.kind.takes_null:
            return
        if type(value) not in self._types:
            raise self.kind.error(path, value) if self.error is None else CommandError(*self.error)
        if self.items is not None:
            types = self.items.types
            for index, item in () if types.issuperset(map(type, value)) else enumerate(value):
                if type(item) not in types:
                    error = self.items_error
                    raise self.items.error(f"{path}.{index}", item) if error is None else CommandError(*error)
        if self.fields is not None:
            self.fields.check(path, value)
        if self.check is not None and (self.least is None or to_long(value) < self.least):
            self.check(path, value)


class Fields:
    """The declared fields of one document. `strict=False`: any other field is accepted and ignored.

    `path` names the document in error messages, if not its path in the command. `unknown` makes the error for an
    undeclared field from the document's path and the field's name, if the error is not 40415.
    """

    __slots__ = ("_accepted", "_required", "_unknown", "by_name", "path", "strict")

    def __init__(
        self, *fields: Field[Any], strict: bool = True, path: str | None = None,
        unknown: Callable[[str, str], CommandError] | None = None,
    ) -> None:  # fmt: skip
        self.by_name = {field.name: field for field in fields}
        if len(self.by_name) != len(fields):
            raise ValueError(f"a field is declared twice: {sorted(field.name for field in fields)}")
        self.strict = strict
        self.path = path
        self._unknown = unknown or _unknown
        self._accepted = {field.name: field.accepted for field in fields}
        self._required = tuple(field.name for field in fields if field.required)

    def check(self, path: str, document: dict[str, Any]) -> None:
        """Raise for the first field that is undeclared or not as declared; then for a missing field."""
        accepted = self._accepted
        try:
            for name, value in document.items():
                if type(value) not in accepted[name]:
                    self._examine(path, name, value)
        except KeyError:  # an undeclared field: examine each field for the exact error
            for name, value in document.items():
                self._examine(path, name, value)
        for name in self._required:
            if document.get(name) is None:
                raise missing(f"{self.path or path}.{name}")

    def _examine(self, path: str, name: str, value: Any) -> None:
        field = self.by_name.get(name)
        if field is not None:
            if type(value) is not int or field.least is None or value < field.least:
                field.examine(f"{self.path or path}.{name}", value)
        elif self.strict:
            raise self._unknown(self.path or path, name)


def _unknown(path: str, name: str) -> CommandError:
    return CommandError(40415, f"BSON field '{path}.{name}' is an unknown field.")


def missing(path: str) -> CommandError:
    """Return the error for a required field that is absent."""
    return CommandError(40414, f"BSON field '{path}' is missing but a required field")


class Arguments(Fields):
    """The fields of a command: its own, the generic ones, and the one with the command's name under every alias."""

    __slots__ = ()

    def __init__(self, name: str, aliases: Iterable[str], specific: Fields, generic: Fields) -> None:
        named = specific.by_name.get(name) or Field(name, "any", None)
        others = [field for field in specific.by_name.values() if field is not named]
        shared = [field for field in generic.by_name.values() if field.name not in specific.by_name]
        super().__init__(named, *others, *shared, strict=specific.strict, path=specific.path)
        for alias in aliases:
            self.by_name[alias] = named
            self._accepted[alias] = named.accepted

    def _examine(self, path: str, name: str, value: Any) -> None:
        if name in self.by_name or not name.startswith("$"):
            super()._examine(path, name, value)


# Declarations.


def any_type(name: str, *, required: bool = False) -> Field[Any]:
    """Declare a field of any type, which the command checks itself."""
    return Field(name, "any", None, required=required)


def array(
    name: str, items: str | None = None, *, required: bool = False, error: Error | None = None,
    items_error: Error | None = None, check: Check | None = None,
) -> Field[list[Any]]:  # fmt: skip
    """Declare an array; the default is empty."""
    return Field(name, "array", [], items=items, required=required, error=error, items_error=items_error, check=check)


def documents(name: str, fields: Fields, *, required: bool = False) -> Field[list[Any]]:
    """Declare an array of documents, each with declared fields; the default is empty."""

    def check(path: str, value: list[Any]) -> None:
        for index, item in enumerate(value):
            fields.check(f"{path}.{index}", item)

    return array(name, "object", required=required, check=check)


def any_boolean(name: str) -> Field[bool]:
    """Declare a boolean for a command without an IDL in MongoDB: a value of any type is accepted."""
    return Field(name, "anyBool", False)


def boolean(name: str, default: bool = False, *, strict: bool = False, required: bool = False) -> Field[bool]:
    """Declare a boolean; a number is accepted unless `strict`."""
    return Field(name, "strictBool" if strict else "bool", default, required=required)


def document(
    name: str, fields: Fields | None = None, *, required: bool = False, error: Error | None = None,
    check: Check | None = None,
) -> Field[dict[str, Any]]:  # fmt: skip
    """Declare a document, with declared `fields` or any; the default is empty."""
    return Field(name, "object", {}, fields=fields, required=required, error=error, check=check)


@overload
def number(
    name: str, default: int, *, least: int | None = None, required: bool = False, check: Check | None = None
) -> Field[int]: ...
@overload
def number(
    name: str, default: None = None, *, least: int | None = None, required: bool = False, check: Check | None = None
) -> Field[int | None]: ...
def number(
    name: str, default: Any = None, *, least: int | None = None, required: bool = False, check: Check | None = None
) -> Field[Any]:
    """Declare a number, converted to a 64-bit integer. Below `least`: error 51024, or the error of `check`."""
    if least is not None and check is None:
        check = _below(name, least)
    return Field(name, "number", default, required=required, check=check, least=least)


def _below(name: str, least: int) -> Check:
    def check(path: str, value: Any) -> None:
        raise CommandError(51024, f"BSON field '{name}' value must be >= {least}, actual value '{to_long(value)}'")

    return check


def string(name: str, *, choices: Iterable[str] = (), default: str = "", required: bool = False) -> Field[str]:
    """Declare a string; the default is empty. If `choices` are given, any other value is error 2."""
    return Field(name, "string", default, required=required, check=_one_of(frozenset(choices)) if choices else None)


def _one_of(choices: frozenset[str]) -> Check:
    def check(path: str, value: Any) -> None:
        if value not in choices:
            raise CommandError(2, f"Enumeration value '{value}' for field '{path}' is not a valid value.")

    return check


def unsupported(name: str, error: Error, kind: str = "any") -> Field[Any]:
    """Declare a MongoDB field that is refused unless its value counts as false."""

    def check(path: str, value: Any) -> None:
        if truthy(value) and value != {}:
            raise CommandError(*error)

    return Field(name, kind, None, check=check)


def uuid(name: str, *, required: bool = False) -> Field[Any]:
    """Declare a UUID."""
    return Field(name, "binData", None, required=required, check=_check_uuid)


def _check_uuid(path: str, value: Any) -> None:
    if type(value) is not Binary or value.subtype != 4:
        raise CommandError(14, f"BSON field '{path}' is the wrong type '{type_name(value)}', expected type 'UUID'")
    if len(value) != 16:
        raise CommandError(207, f"BSON field '{path}' is no UUID: it must have 16 bytes, and has {len(value)}")


def without_effect(kind: str, *names: str) -> list[Field[Any]]:
    """Declare MongoDB fields that have no effect here; only their types are checked."""
    return [Field(name, kind, None) for name in names]


def raw_documents(request: Request, field: str) -> list[bytes]:
    """Return the raw documents of a write, from a kind-1 section or the body. Raise 14, 16, 40414 or 72."""
    documents = request.sequences.get(field)
    if documents is None:
        element = find_element(request.raw, field.encode())
        if element is None or element[0] != 0x04:  # null; the check of the fields has refused other types
            raise missing(f"{request.name}.{field}")
        documents = []
        for kind, index, low, high in iter_elements(request.raw, element[1]):
            if kind != 0x03:
                item = value_of(kind, request.raw, low, high)
                raise TYPES["object"].error(f"{request.name}.{field}.{index.decode()}", item)
            documents.append(request.raw[low:high])
    if not (documents or field == "nsInfo") or len(documents) > limits.WRITE_BATCH_COUNT_MAX:
        raise CommandError(
            16,
            f"Write batch sizes must be between 1 and {limits.WRITE_BATCH_COUNT_MAX}. Got {len(documents)} operations.",
        )
    if request.body.get("stmtIds") is not None and field != "nsInfo":
        _check_statement_ids(request.body, len(documents))
    return documents


def _check_statement_ids(body: dict[str, Any], count: int) -> None:
    """Raise 16 unless `stmtIds` has one ID per statement, 72 if `stmtId` is present as well."""
    ids = len(body["stmtIds"])
    if ids != count:
        raise CommandError(
            16,
            f"Number of statement ids must match the number of batch entries. Got {ids} statement ids but {count} "
            "operations.",
        )
    if body.get("stmtId") is not None:
        raise CommandError(72, "May not specify both stmtId and stmtIds in write command.")
