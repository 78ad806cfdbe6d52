"""Values of a job file: the base of its tables, the types of its values, and errors that say what is allowed.

The type of a key states once what is allowed. The check, the message, the reference page and the JSON schema use it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Annotated, Any, Final, Self, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from headrace.spark.columns.column_types import SchemaError, parse_path
from headrace.spark.errors import nearest, shown
from headrace.spark.masks.mask import check_path
from headrace.spark.mongodb.collection_selection import check_collection_name, check_database_name
from headrace.spark.tables.checked_paths import checked_path

Place = tuple[str | int, ...]
"""Keys of the file, and numbers of sinks, on the path from the top to a value."""
_LISTED_KEY_COUNT_MAX: Final = 20
_PORT_MAX: Final = 65535
_HOST: Final = re.compile(r"\w([\w-]{0,61}\w)?(\.\w([\w-]{0,61}\w)?)*\.?")
_HOST_LENGTH_MAX: Final = 253


class FileError(ValueError):
    """A key or a value of a job's file is not allowed. `place` is where it is; empty if that is not known."""

    def __init__(self, message: str, place: Place = ()) -> None:
        super().__init__(message)
        self.place = place


class FileTable(BaseModel):
    """A table of a job file. An unknown key is an error, and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())

    @classmethod
    def of(cls, given: Mapping[str, Any], where: str, place: Place = ()) -> Self:
        """Return the table; raise FileError for the first thing in it that is not allowed.

        `where` names the table in the message, `place` is where it is in the file.
        """
        for name, field in cls.keys().items():
            _check_inner(field.annotation, given.get(name), name, (*place, name))
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
        if not first["loc"]:
            raise FileError(f"{where} {first['ctx']['error']}", place)
        name = str(first["loc"][0])
        raise FileError(cls._message(first, name, given.get(name), where), (*place, name)) from None

    @classmethod
    def _message(cls, error: Mapping[str, Any], name: str, value: Any, where: str) -> str:
        if error["type"] == "missing":
            return f"{where} needs {name!r}"
        if error["type"] == "extra_forbidden":
            keys = cls.keys()
            listed = f"; it has {', '.join(keys)}" if len(keys) <= _LISTED_KEY_COUNT_MAX else ""
            return f"{where} has no {name!r}{listed}{nearest(name, keys)}"
        inside = f"{where}: " if where != TOP else ""
        if error["type"] == "value_error" and str(error["ctx"]["error"]):
            return f"{inside}{name!r} {error['ctx']['error']}"
        schema = cls.schemas()[name]
        near = nearest(value, schema.get("enum", ())) if isinstance(value, str) else ""
        return f"{inside}{name!r} is {allowed(schema)}, not {shown(value)}{near}"

    @classmethod
    def keys(cls) -> dict[str, FieldInfo]:
        """Return the keys, sorted, each with its description, its default and its examples."""
        return {field.alias or name: field for name, field in sorted(cls.model_fields.items())}

    @classmethod
    def schemas(cls) -> dict[str, Any]:
        """Return the JSON schema of each key."""
        schemas: dict[str, Any] = cls.model_json_schema(schema_generator=Schema)["properties"]
        return schemas


TOP: Final = "a job"
"""The name of the file's top in messages."""


class Schema(GenerateJsonSchema):
    """JSON schemas whose titles say what is allowed; pydantic's own titles would repeat the key."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False: only the type of a key gives it a title."""
        return False


def entry(default: Any, text: str, *, example: Any, shown: str = "") -> Any:
    """Return a key: its default (`...`: it is required), Markdown about it, and an example.

    `shown` is the default as the reference page has it, where that is not the value.
    """
    return Field(default, description=text, examples=[example], json_schema_extra={"shown": shown} if shown else None)


def allowed(schema: Mapping[str, Any]) -> str:
    """Return what a JSON schema allows, in words, such as `a whole number from 0 to 10`."""
    if "title" in schema:
        return str(schema["title"])
    if "anyOf" in schema:
        *first, last = (allowed(each) for each in schema["anyOf"] if each.get("type") != "null")
        return f"{', '.join(first)} or {last}" if first else last
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    if values:
        words = ["true" if each is True else "false" if each is False else str(each) for each in values]
        return f"{'one of ' * (len(words) > 1)}{', '.join(words)}"
    match schema.get("type"):
        case "boolean":
            return "true or false"
        case "integer":
            return f"a whole number{_range(schema)}"
        case "number":
            return f"a number{_range(schema)}"
        case "array":
            return "an array of tables"
    return "a table"


def _range(schema: Mapping[str, Any]) -> str:
    if "exclusiveMinimum" in schema:
        return f" above {schema['exclusiveMinimum']:g}"
    return f" from {schema['minimum']}" + (f" to {schema['maximum']}" if "maximum" in schema else " on")


def _check_inner(annotation: Any, value: Any, name: str, place: Place) -> None:
    """Raise FileError for the first error inside a value: a table, a table of tables, or an array of tables."""
    tables = [each for each in _types(annotation) if isinstance(each, type) and issubclass(each, FileTable)]
    if len(tables) > 1 and isinstance(value, list):
        for number, each in enumerate(value):
            if isinstance(each, Mapping):
                check_kind(tables, each, (*place, number))
    elif len(tables) == 1 and isinstance(value, Mapping):
        inner = value.items() if get_origin(annotation) is dict else ()
        for key, each in inner:
            if isinstance(each, Mapping):
                tables[0].of(each, f"[{'.'.join(map(str, (*place, key)))}]", (*place, key))
        if get_origin(annotation) is not dict:
            tables[0].of(value, f"[{name}]", place)


def check_kind(tables: Sequence[type[FileTable]], given: Mapping[str, Any], place: Place) -> None:
    """Raise FileError for a sink without a known kind, or whose table is wrong for its kind."""
    kinds = {get_args(table.model_fields["kind"].annotation)[0]: table for table in tables}
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        near = nearest(kind, kinds) if isinstance(kind, str) else ""
        raise FileError(f"a sink's kind is one of {', '.join(kinds)}, not {shown(kind)}{near}", (*place, "kind"))
    kinds[kind].of(given, f"the sink {kind!r}", place)


def _types(annotation: Any) -> list[Any]:
    """Return the types in an annotation: the members of a union, and the items of a container."""
    return [each for one in get_args(annotation) for each in _types(one)] or [annotation]


def _that(fits: Callable[[str], Any]) -> AfterValidator:
    def check(text: str) -> str:
        if not fits(text):
            raise ValueError
        return text

    return AfterValidator(check)


def _field_path(text: str) -> str:
    try:
        parse_path(text)
    except SchemaError:
        raise ValueError(f"has {shown(text)}, which is no path of a field: names with dots between them") from None
    check_path(text)
    return text


def _in_units(units: Mapping[str, int], *, least: int = 0, multiple: int = 1) -> BeforeValidator:
    """Return a validator that converts a text such as `30 days` to a number; its unit must be one of `units`."""

    def convert(text: Any) -> int:
        matched = re.fullmatch(r"(\d+) ?(\w+)", str(text))
        count = int(matched[1]) * units[matched[2]] if matched and matched[2] in units else -1
        if count < least or count % multiple:
            raise ValueError
        return count

    return BeforeValidator(convert)


_SECONDS: Final = {"day": 86_400, "hour": 3600, "minute": 60, "second": 1, "week": 604_800}
_SECONDS_OF: Final = _SECONDS | {f"{name}s": count for name, count in _SECONDS.items()}
_BYTES: Final = {"B": 1, "GB": 1000**3, "KB": 1000, "MB": 1000**2}
_INTERVAL: Final = re.compile(
    r"(\d+(?:\.\d+)?)\s*(microsecond|millisecond|second|minute|hour|day|week)s?(?:\s+|$)", re.IGNORECASE
)
_INTERVAL_UNITS: Final = _SECONDS | {"microsecond": 1e-6, "millisecond": 1e-3}
_INTERVAL_DAYS_MAX: Final = 365
_MEMORY: Final = re.compile(r"([1-9]\d{0,9})([kmgt]?)", re.IGNORECASE)
_MEMORY_MB_MIN: Final = 512
"""The least heap with which Spark starts a driver, rounded up."""
_MEMORY_GB_MAX: Final = 1024


def _is_interval(text: str) -> bool:
    """Whether the text is an interval for Spark, and not longer than a year."""
    plain = re.sub(r"\Ainterval\s+", "", text.strip(), flags=re.IGNORECASE)
    if not plain or _INTERVAL.sub("", plain):
        return False
    seconds = sum(float(number) * _INTERVAL_UNITS[unit.lower()] for number, unit in _INTERVAL.findall(plain))
    return seconds <= _INTERVAL_DAYS_MAX * _SECONDS["day"]


def _is_memory(text: str) -> bool:
    matched = _MEMORY.fullmatch(text.strip())
    size = int(matched[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[matched[2].lower()] if matched else 0
    return _MEMORY_MB_MIN << 20 <= size <= _MEMORY_GB_MAX << 30


def _is_host(text: str) -> bool:
    """Whether the text is an address of IPv4 or IPv6, or a name that a host can have."""
    try:
        return bool(ip_address(text))
    except ValueError:
        return len(text) <= _HOST_LENGTH_MAX and _HOST.fullmatch(text) is not None


Text = Annotated[str, _that(str.strip), Field(title="a text")]
Line = Annotated[
    str, _that(lambda text: text.strip() and text.isprintable() and len(text) <= 200),
    Field(title="a line of text of at most 200 characters"),
]  # fmt: skip
Host = Annotated[str, _that(_is_host), Field(title="an IP address, or the name of a host")]
Paths = Annotated[
    list[Annotated[str, AfterValidator(_field_path), Field(title="a path")]], Field(title="an array of paths")
]
FilePath = Annotated[str, AfterValidator(checked_path), Field(title="a path")]
Interval = Annotated[
    str, _that(_is_interval),
    Field(title=f"an interval such as '1 second', of at most {_INTERVAL_DAYS_MAX} days"),
]  # fmt: skip
Memory = Annotated[
    str, _that(_is_memory),
    Field(title=f"a size from {_MEMORY_MB_MIN}m to {_MEMORY_GB_MAX}g such as '1g'"),
]  # fmt: skip
DatabaseName = Annotated[str, AfterValidator(check_database_name), Field(title="the name of a database")]
CollectionName = Annotated[str, AfterValidator(check_collection_name), Field(title="the name of a collection")]
Port = Annotated[int, Field(ge=0, le=_PORT_MAX, title=f"a port from 0 to {_PORT_MAX}")]
Duration = Annotated[
    int, _in_units(_SECONDS_OF), WithJsonSchema({"type": "string", "title": 'a duration such as "30 days"'})
]
Hours = Annotated[
    int,
    _in_units(_SECONDS_OF, multiple=3600),
    WithJsonSchema({"type": "string", "title": 'a duration such as "2 hours"'}),
]
Size = Annotated[
    int, _in_units(_BYTES, least=1), WithJsonSchema({"type": "string", "title": 'a size such as "128 MB"'})
]
