"""BSON values to canonical Extended JSON v2 and back: the representation of documents in Spark's rows.

Rule: the text keeps the order of fields and every type. Two values have the same text exactly when they are the same
BSON, so texts can be compared instead of documents. The text is compact (no blanks), with non-ASCII characters
unescaped.

A document may look like an Extended JSON value: `{"$oid": "zz"}` as data, with exactly the names in a value's text. It
is written inside `{"$plainDocument": ...}`, because the format has no escape for it. Texts of earlier versions lack
this. There such a document is read as the value that it looks like, or as a document if it is no valid value.

`bson.json_util` takes four times as long, and a pipeline converts every value.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable, Collection
from json.encoder import c_encode_basestring as _quoted  # type: ignore[attr-defined]
from typing import Any, Final

from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, json_util
from bson.binary import UuidRepresentation
from bson.codec_options import DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.errors import InvalidId

_READING: Final = json_util.JSONOptions(
    json_mode=json_util.JSONMode.CANONICAL,
    tz_aware=False,
    document_class=dict,
    datetime_conversion=DatetimeConversion.DATETIME_MS,
    uuid_representation=UuidRepresentation.UNSPECIFIED,
)
_PLAIN: Final = "$plainDocument"
_SHAPES: Final = frozenset(
    frozenset(names.split())
    for names in (
        "$binary", "$binary $type", "$code", "$code $scope", "$date", "$dbPointer", "$maxKey", "$minKey",
        "$numberDecimal", "$numberDouble", "$numberInt", "$numberLong", "$oid", "$options $regex", _PLAIN, "$regex",
        "$regularExpression", "$symbol", "$timestamp", "$undefined", "$uuid",
    )
)  # fmt: skip
"""The names in the text of each kind of value; an object with exactly these names is read as a value."""
_SHAPE_NAMES_MAX: Final = 2
# The flags of Python's `re` for which BSON has letters, in BSON's order.
_REGEX_FLAGS: Final = ((2, "i"), (4, "l"), (8, "m"), (16, "s"), (32, "u"), (64, "x"))


def dumps(value: Any) -> str:
    """Return the value's canonical text; `value` is of a type that `headrace.values.bson` decodes. Raise TypeError."""
    writer = _WRITERS.get(type(value))
    if writer is None:
        raise TypeError(f"{type(value).__name__} is not a BSON value")
    return writer(value)


def loads(text: str) -> Any:
    """Return the value of a stored text, canonical or relaxed. Raise ValueError if the text is not JSON."""
    return _read(json.loads(text))


def loads_strict(text: str) -> Any:
    """Return the value of a text that a user typed. Raise ValueError, also for `{"$oid": "zz"}`."""
    return _read(json.loads(text), strict=True)


def looks_like_value(names: Collection[str]) -> bool:
    """Whether a document with these names is written inside `$plainDocument`."""
    return 0 < len(names) <= _SHAPE_NAMES_MAX and frozenset(names) in _SHAPES


def plain(text: str) -> str:
    """Return the text of a document that looks like a value, from the text of its members in braces."""
    return f'{{"{_PLAIN}":{text}}}'


def _document(value: dict[str, Any]) -> str:
    text = _members(value)
    return plain(text) if text.startswith('{"$') and looks_like_value(value) else text


def _members(value: dict[str, Any]) -> str:
    members = []
    for key, item in value.items():
        kind = type(item)
        if kind is str:
            members.append(f"{_quoted(key)}:{_quoted(item)}")
        elif kind is int and -(1 << 31) <= item < 1 << 31:
            members.append(f'{_quoted(key)}:{{"$numberInt":"{item}"}}')
        else:
            writer = _WRITERS.get(kind)
            members.append(f"{_quoted(key)}:{writer(item) if writer else dumps(item)}")
    return "{" + ",".join(members) + "}"


def _array(value: list[Any]) -> str:
    return "[" + ",".join([dumps(item) for item in value]) + "]"


def _double(value: float) -> str:
    if math.isfinite(value):
        return f'{{"$numberDouble":"{value!r}"}}'
    name = "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return f'{{"$numberDouble":"{name}"}}'


def _int(value: int) -> str:
    kind = "$numberInt" if -(1 << 31) <= value < 1 << 31 else "$numberLong"
    return f'{{"{kind}":"{value}"}}'


def _binary(value: bytes) -> str:
    subtype = value.subtype if isinstance(value, Binary) else 0
    return f'{{"$binary":{{"base64":"{b64encode(value).decode()}","subType":"{subtype:02x}"}}}}'


def _code(value: Code) -> str:
    scope = "" if value.scope is None else f',"$scope":{dumps(dict(value.scope))}'
    return f'{{"$code":{_quoted(str(value))}{scope}}}'


def _regex(value: Regex[Any]) -> str:
    pattern = value.pattern.decode() if isinstance(value.pattern, bytes) else value.pattern
    flags = "".join(letter for bit, letter in _REGEX_FLAGS if value.flags & bit)
    return f'{{"$regularExpression":{{"pattern":{_quoted(pattern)},"options":"{flags}"}}}}'


_WRITERS: Final[dict[type, Callable[[Any], str]]] = {
    Binary: _binary,
    Code: _code,
    DBRef: lambda value: _document(dict(value.as_doc())),
    DatetimeMS: lambda value: f'{{"$date":{{"$numberLong":"{int(value)}"}}}}',
    Decimal128: lambda value: f'{{"$numberDecimal":"{value}"}}',
    Int64: lambda value: f'{{"$numberLong":"{value}"}}',
    MaxKey: lambda value: '{"$maxKey":1}',
    MinKey: lambda value: '{"$minKey":1}',
    ObjectId: lambda value: f'{{"$oid":"{value}"}}',
    Regex: _regex,
    Timestamp: lambda value: f'{{"$timestamp":{{"t":{value.time},"i":{value.inc}}}}}',
    bool: lambda value: "true" if value else "false",
    bytes: _binary,
    dict: _document,
    float: _double,
    int: _int,
    list: _array,
    str: _quoted,
    type(None): lambda value: "null",
}


def _read(value: Any, strict: bool = False) -> Any:
    """Return the BSON value of parsed JSON; three times as fast as hooks that `json` calls for each object."""
    kind = type(value)
    if kind is dict:
        if len(value) == 1:
            ((name, inner),) = value.items()
            fast = _READERS.get(name)
            if fast is not None and type(inner) is str:
                try:
                    return fast(inner)
                except (ArithmeticError, InvalidId, ValueError) as error:
                    return _no_value(value, error, strict)
            if name == "$date" and type(inner) is dict and inner.keys() == {"$numberLong"}:
                return DatetimeMS(int(inner["$numberLong"]))
            if name == _PLAIN and type(inner) is dict:
                return _read_members(inner, strict)
        read = _read_members(value, strict)
        return _wrapped(read, strict) if len(value) <= _SHAPE_NAMES_MAX and looks_like_value(value) else read
    if kind is list:
        return [_read(item, strict) for item in value]
    if kind is int and not -(1 << 31) <= value < 1 << 31:
        return Int64(value)
    return value


def _read_members(value: dict[str, Any], strict: bool) -> dict[str, Any]:
    return {name: item if type(item) in _THEMSELVES else _read(item, strict) for name, item in value.items()}


def _wrapped(value: dict[str, Any], strict: bool) -> Any:
    """Return the BSON value of an object with the names of a value; its members are converted already."""
    try:
        return json_util.object_hook(dict(value), json_options=_READING)
    except Exception as error:
        # If json_util fails in any way, the object is a document as MongoDB stored it.
        return _no_value(value, error, strict)


def _no_value(value: dict[str, Any], error: Exception, strict: bool) -> dict[str, Any]:
    if strict:
        raise ValueError(f"{json.dumps(value, default=str)} is no value of Extended JSON: {error}") from None
    return value


_THEMSELVES: Final = frozenset({bool, float, str, type(None)})
_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "$numberDecimal": Decimal128,
    "$numberDouble": float,
    "$numberInt": int,
    "$numberLong": Int64,
    "$oid": ObjectId,
}


_RAW_VERSION: Final = {"$numberInt": "2"}
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))


_SCAN: Final[Callable[[str, int], tuple[Any, int]]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_SECTIONS: Final = frozenset({"d", "u", "i"})


class JsonDocument(dict[str, Any]):
    """A document's fields, each with its value as parsed Extended JSON.

    It is for updates that only set, add and remove whole fields. Such an update does not read the document's values,
    and inserts its own values unchanged. This takes a quarter of the time of decoding all values, and gives the same
    text.
    """

    def text(self) -> str:
        """Return the document's Extended JSON; it is canonical if the text of its values is."""
        return _ENCODER.encode(self)


def with_fields(before: str | JsonDocument, description: str) -> JsonDocument | None:
    """Return the document after an update in the oplog's form (`$v: 2`); None if it changes more than whole fields.

    A `JsonDocument` is changed in place and returned, unless the result is None.
    """
    update = _parsed(description)
    diff = update.get("diff") if isinstance(update, dict) and update.get("$v") == _RAW_VERSION else None
    if not isinstance(diff, dict) or not _SECTIONS.issuperset(diff) or not all(map(_is_plain, diff.values())):
        return None
    if isinstance(before, str):
        if before.startswith('{"$'):
            return None
        fields = _parsed(before)
        if not isinstance(fields, dict):
            return None
        document = JsonDocument(fields)
    else:
        document = before
    for section, content in diff.items():
        if section == "u":
            document.update(content)
            continue
        for name, value in content.items():
            document.pop(name, None)
            if section == "i":
                document[name] = value
    return document


def _is_plain(section: Any) -> bool:
    """Whether the names in a section are field names: a document that looks like a value is written differently."""
    if not isinstance(section, dict):
        return False
    for name in section:  # noqa: SIM110 - a third of the time of any()
        if name[:1] == "$":
            return False
    return True


def _parsed(text: str) -> Any:
    """Parse JSON as `json.loads` does, but without searching for space around the value."""
    try:
        value, end = _SCAN(text, 0)
    except StopIteration:
        end = -1
    return value if end == len(text) else json.loads(text)
