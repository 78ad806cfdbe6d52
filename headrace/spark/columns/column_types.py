"""The types of typed columns, and their text: Spark's DDL with `objectId`, `uuid` and `as`.

    bigint                            a long, stored as one
    int as bigint                     what was an int when the column was made, stored as a long since others came
    decimal(38,2)                     a decimal; objectId and uuid are stored as text
    struct<city: string, `zip code`: string -> zip_code>
    array<double>   map<string, int>  (keys of a map are strings)
    rest                              no column: the value stays in the rest

Rule: the BSON type before `as` never changes once a row has it. A value of another type that the column can store has
its own type in the row's shape, and one of this type has none; so a column widens without a change to what its rows
mean.

A table's schema is text that people edit, a line for each column:

    _id objectId
    address struct<city: string, zip: string>
    address.geo.lat double -> lat
    `first name` string -> first_name
    internal rest

The path in the document, the type, and the name of the column where it is not the path with `_` between its names. What
begins with `#` is a comment. In a job's file the columns may also be in one line, with commas.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from headrace import limits

NAMES: Final = {
    "bigint": "bigint", "binary": "binary", "bool": "boolean", "boolean": "boolean", "byte": "tinyint",
    "dec": "decimal", "decimal": "decimal", "double": "double", "float": "float", "int": "int", "integer": "int",
    "long": "bigint", "numeric": "decimal", "objectid": "objectId", "real": "float", "short": "smallint",
    "smallint": "smallint", "string": "string", "timestamp": "timestamp", "tinyint": "tinyint", "uuid": "uuid",
    "varchar": "string",
}  # fmt: skip
"""The types by each of their names, in lower case."""
NUMBERS: Final = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|(->)|([<>(),:])|([^\s`<>(),:]+))")


class SchemaError(ValueError):
    """The text of a schema is invalid, or describes an impossible schema. `key` is the option that has it, if known."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True, slots=True)
class Primitive:
    """The name of a type, a value of `NAMES`, with precision and scale for a decimal."""

    name: str
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.name == "decimal" else self.name


@dataclass(frozen=True, slots=True)
class LeafType:
    """A column of values. `natural` is their BSON type, unless the row's shape names another."""

    natural: Primitive
    stored: Primitive

    def __str__(self) -> str:
        return str(self.natural) if self.stored == stored_as(self.natural) else f"{self.natural} as {self.stored}"


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """An array, whose items have one type."""

    item: ColumnType

    def __str__(self) -> str:
        return f"array<{self.item}>"


@dataclass(frozen=True, slots=True)
class MapOf:
    """An object with arbitrary names, whose values have one type."""

    value: ColumnType

    def __str__(self) -> str:
        return f"map<string, {self.value}>"


@dataclass(frozen=True, slots=True)
class StructField:
    """A field: its path in the struct's document, the name of its column, and its type (None: `rest`).

    `path` has one name, except for a flattened field of a table, whose path has several.
    """

    path: tuple[str, ...]
    column: str
    type: ColumnType | None


@dataclass(frozen=True, slots=True)
class StructOf:
    """An object with known names; also the type of a table's documents."""

    fields: tuple[StructField, ...]

    def __str__(self) -> str:
        return "struct<" + ", ".join(map(_nested_text, self.fields)) + ">"


ColumnType = LeafType | ArrayOf | MapOf | StructOf


def leaf(name: str, precision: int = 38, scale: int = 0) -> LeafType:
    """Return the type of that name, as it is stored at first."""
    natural = Primitive(name, precision, scale) if name == "decimal" else Primitive(name)
    return LeafType(natural, stored_as(natural))


def stored_as(natural: Primitive) -> Primitive:
    """Return how values of a type are stored at first."""
    return Primitive("string") if natural.name in {"objectId", "uuid"} else natural


def leaf_count(kind: ColumnType | None) -> int:
    """Return the number of values that a type has in a row."""
    if isinstance(kind, StructOf):
        return sum(leaf_count(field.type) for field in kind.fields)
    if isinstance(kind, ArrayOf):
        return leaf_count(kind.item)
    return leaf_count(kind.value) if isinstance(kind, MapOf) else int(kind is not None)


def parse_fields(text: str) -> tuple[StructField, ...]:
    """Return the fields in a text like Spark's DDL: `_id STRING, address.city STRING -> city`."""
    parser = _SchemaParser(text)
    fields = parser.fields("")
    parser.end()
    return fields


def path_text(path: tuple[str, ...]) -> str:
    """Return a path with dots; names with characters other than letters and digits are in backticks."""
    return ".".join(map(_quoted, path))


def parse_path(text: str) -> tuple[str, ...]:
    """Return the path in the text: names with dots between them. Raise SchemaError."""
    parser = _SchemaParser(text)
    path = parser.path()
    parser.end()
    return path


def field_text(field: StructField, column: str) -> str:
    """Return the field as a line of a schema; `column` is its default column name, which the line omits."""
    renamed = "" if field.column == column or field.type is None else f" -> {_quoted(field.column)}"
    return f"{path_text(field.path)} {'rest' if field.type is None else field.type}{renamed}"


def _nested_text(field: StructField) -> str:
    renamed = "" if field.column == field.path[0] or field.type is None else f" -> {_quoted(field.column)}"
    return f"{_quoted(field.path[0])}: {'rest' if field.type is None else field.type}{renamed}"


def _quoted(name: str) -> str:
    if re.fullmatch(r"\w[\w-]*", name):
        return name
    return "`" + name.replace("\\", "\\\\").replace("`", "``").replace("\n", "\\n").replace("\r", "\\r") + "`"


def _unquoted(text: str) -> str:
    escapes = {"\\\\": "\\", "\\n": "\n", "\\r": "\r"}
    return re.sub(r"\\\\|\\n|\\r", lambda each: escapes[each.group()], text[1:-1].replace("``", "`"))


class _SchemaParser:
    """Reads tokens from left to right, one token ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._next = next(self._tokens, "")

    def fields(self, closing: str) -> tuple[StructField, ...]:
        """Return fields with commas between them, up to `closing`."""
        fields = []
        while self._next != closing:
            path = self.path() if not closing else (self._name(),)
            if self._next == ":":
                self._take()
            kind = self.type()
            column = "_".join(path)
            if self._next == "->":
                self._take()
                column = self._name()
            fields.append(StructField(path, column, kind))
            if self._next == ",":
                self._take()
            elif self._next != closing:
                raise self._wrong("a comma")
        return tuple(fields)

    def path(self) -> tuple[str, ...]:
        """Return names with dots between them."""
        names: list[str] = []
        more = True
        while more:
            token = self._take()
            if token.startswith("`"):
                names.append(_unquoted(token))
                more = self._next.startswith(".")
                if more and self._next == ".":
                    self._take()
                elif more:
                    self._next = self._next[1:]
                continue
            more = token.endswith(".")
            found = token.removesuffix(".").split(".")
            names += found
            if not re.match(r"[\w$-]", token) or "" in found:
                raise self._wrong("a name")
        return tuple(names)

    def type(self) -> ColumnType | None:
        """Return a type; None for `rest`."""
        name = self._take().lower()
        if name == "rest":
            return None
        if name in {"array", "map", "struct"}:
            return self._nested(name)
        natural = self._primitive(name)
        stored = stored_as(natural)
        if self._next.lower() == "as":
            self._take()
            stored = self._primitive(self._take().lower())
        return LeafType(natural, stored)

    def end(self) -> None:
        """Raise SchemaError if there is more text."""
        if self._next:
            raise self._wrong("the end")

    def _nested(self, name: str) -> ColumnType:
        self._expect("<")
        kind: ColumnType
        if name == "struct":
            kind = StructOf(self.fields(">"))
            if not any(field.type for field in kind.fields):
                raise SchemaError(f"{self._text!r}: a struct has one field at least")
        else:
            if name == "map":
                if self._primitive(self._take().lower()).name != "string":
                    raise SchemaError(f"{self._text!r}: the keys of a map are strings")
                self._expect(",")
            item = self.type()
            if item is None:
                raise SchemaError(f"{self._text!r}: items have a type")
            kind = MapOf(item) if name == "map" else ArrayOf(item)
        self._expect(">")
        return kind

    def _primitive(self, name: str) -> Primitive:
        known = NAMES.get(name)
        if known is None:
            raise SchemaError(f"{self._text!r}: {name!r} is no type that a value of BSON has")
        numbers = [10, 0] if known == "decimal" else []
        if self._next == "(":
            self._take()
            numbers = [self._number()]
            while self._next == ",":
                self._take()
                numbers.append(self._number())
            self._expect(")")
        if known != "decimal":
            return Primitive(known)
        precision, scale = numbers[0], numbers[1] if len(numbers) > 1 else 0
        if not 0 < precision <= 38 or scale > precision:
            raise SchemaError(f"{self._text!r}: decimal({precision},{scale}) is none")
        return Primitive(known, precision, scale)

    def _number(self) -> int:
        token = self._take()
        if not token.isascii() or not token.isdigit():
            raise self._wrong("a number")
        return int(token)

    def _name(self) -> str:
        token = self._take()
        if not token or token in "<>(),:" or token == "->":
            raise self._wrong("a name")
        return _unquoted(token) if token.startswith("`") else token

    def _expect(self, token: str) -> None:
        if self._next != token:
            raise self._wrong(repr(token))
        self._take()

    def _take(self) -> str:
        token, self._next = self._next, next(self._tokens, "")
        if not token:
            raise self._wrong("more")
        return token

    def _wrong(self, wanted: str) -> SchemaError:
        return SchemaError(f"{self._text!r} is no schema: {wanted} was expected before {self._next or 'its end'!r}")


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise SchemaError(f"{text!r} is no schema: a backtick is missing")
        yield next(group for group in match.groups() if group)
        at = match.end()


_REFUSED: Final = re.compile(r"[^\w-]+|\A__delta_rs(?=_)", re.IGNORECASE)
"""Names that begin like deltalake's own columns in a merge."""


def column_name(path: tuple[str, ...], taken: Collection[str], wanted: str | None = None) -> str:
    """Return the column name of the field at the path, or `wanted`; `taken` has the used names in lower case.

    All characters but letters, digits, `_` and `-` become `_`. A name that is taken, in any case, gets a number.
    """
    text = "_".join(path) if wanted is None else wanted
    name = _REFUSED.sub("_", text)[: limits.COLUMN_NAME_LENGTH_MAX] or "_"
    unique, number = name, 2
    while unique.lower() in taken:
        unique, number = f"{name}_{number}", number + 1
    return unique


_SIGNED: Final = "# as of "


def schema_text(schema: StructOf) -> str:
    """Return the schema as lines, without comments."""
    return "".join(f"{field_text(field, '_'.join(field.path))}\n" for field in schema.fields)


def parse_schema(text: str, reserved: Collection[str] = frozenset()) -> StructOf:
    """Return the schema that the text describes; no column has a name in `reserved`. Raise SchemaError."""
    fields: list[StructField] = []
    for statement in _statements(text):
        fields += parse_fields(statement)
    _check_paths(fields)
    return StructOf(_named(fields, set(reserved)))


def file_text(schema: StructOf, title: str) -> str:
    """Return the text of a schema's file, with a signature that shows later edits."""
    lines = schema_text(schema)
    return (
        f"# {title}\n# A line for each column: the path, the type, and the column's name after ->. `rest` instead of a "
        "type: no column.\n# Edits hold from the job's next start on; the table is then rewritten where a type has "
        f"changed.\n{_SIGNED}{_signature(lines)}\n\n{lines}"
    )


def is_edited(text: str) -> bool:
    """Whether the text of a schema's file was edited after `file_text` made it."""
    marks = [line for line in text.splitlines() if line.startswith(_SIGNED)]
    lines = "".join(f"{line.strip()}\n" for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return not marks or marks[0].removeprefix(_SIGNED).strip() != _signature(lines)


def _signature(lines: str) -> str:
    return sha256(lines.encode()).hexdigest()[:16]


def _statements(text: str) -> list[str]:
    """Return the lines without comments; lines within brackets are joined."""
    statements: list[str] = []
    depth = 0
    for line in text.splitlines():
        bare = _without_comment(line).strip()
        if not bare:
            continue
        if depth:
            statements[-1] += " " + bare
        else:
            statements.append(bare)
        depth += _depth(bare)
    return statements


def _without_comment(line: str) -> str:
    quoted = False
    for number, character in enumerate(line):
        quoted ^= character == "`"
        if character == "#" and not quoted:
            return line[:number]
    return line


def _depth(line: str) -> int:
    bare = "".join(part for number, part in enumerate(line.split("`")) if number % 2 == 0).replace("->", "")
    return bare.count("<") + bare.count("(") - bare.count(">") - bare.count(")")


def _check_paths(fields: list[StructField]) -> None:
    """Raise SchemaError if two columns have the same value."""
    paths = [field.path for field in fields]
    for number, path in enumerate(paths):
        for other in paths[:number]:
            if path[: len(other)] == other or other[: len(path)] == path:
                raise SchemaError(f"{path_text(path)} and {path_text(other)} are the same value: it has one column")


def _named(fields: list[StructField], taken: set[str]) -> tuple[StructField, ...]:
    """Return the fields with valid column names. Raise SchemaError if a name is given twice."""
    named = []
    given = {field.column.lower() for field in fields if field.column != "_".join(field.path)}
    for field in fields:
        explicit = field.column != "_".join(field.path)
        if explicit and field.column.lower() in taken:
            raise SchemaError(f"two columns have the name {field.column!r}, whatever its case")
        others = taken if explicit else taken | given
        column = column_name(field.path, others, field.column if explicit else None) if field.type else field.column
        if field.type is not None:
            taken.add(column.lower())
        named.append(replace(field, column=column, type=_nested(field.type)))
    return tuple(named)


def _nested(kind: ColumnType | None) -> ColumnType | None:
    if isinstance(kind, StructOf):
        if len({field.path for field in kind.fields}) < len(kind.fields):
            raise SchemaError(f"{kind} has a field twice")
        return StructOf(_named(list(kind.fields), set()))
    if isinstance(kind, ArrayOf):
        item = _nested(kind.item)
        assert item is not None
        return ArrayOf(item)
    if isinstance(kind, MapOf):
        value = _nested(kind.value)
        assert value is not None
        return MapOf(value)
    return kind
