"""BSON values to canonical Extended JSON v2 and back: the representation of documents in Spark's rows.

Rule: the text keeps the order of fields and every type, so two values have the same text exactly when
they are the same BSON, and text can stand for the document when a mirror is compared with its collection.
Compact (no blanks), non-ASCII characters as themselves.

`bson.json_util` takes four times as long, and a pipeline converts every value. Not handled: a stored document that
looks like Extended JSON (`{"$oid": ...}` as data) has the text of that value; the format has no escape.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable
from json.encoder import encode_basestring as _quoted
from typing import Any, Final

from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, json_util
from bson.binary import UuidRepresentation
from bson.codec_options import DatetimeConversion
from bson.datetime_ms import DatetimeMS

try:
    from json.encoder import c_encode_basestring as _fast_quoted  # type: ignore[attr-defined]
except ImportError:  # pragma: no cover - another Python implementation
    _fast_quoted = None
if _fast_quoted is not None:
    _quoted = _fast_quoted

_READING: Final = json_util.JSONOptions(
    json_mode=json_util.JSONMode.CANONICAL,
    tz_aware=False,
    document_class=dict,
    datetime_conversion=DatetimeConversion.DATETIME_MS,
    uuid_representation=UuidRepresentation.UNSPECIFIED,
)
# The flags of Python's `re` that BSON has letters for, in the order BSON wants them.
_REGEX_FLAGS: Final = ((2, "i"), (4, "l"), (8, "m"), (16, "s"), (32, "u"), (64, "x"))


def dumps(value: Any) -> str:
    """The value's canonical text; `value` as `headrace.values.bson` decodes it. Raises TypeError for other types."""
    writer = _WRITERS.get(type(value))
    if writer is None:
        raise TypeError(f"{type(value).__name__} is not a BSON value")
    return writer(value)


def loads(text: str) -> Any:
    """The value of a canonical or relaxed text. Raises ValueError."""
    return _read(json.loads(text))


def _document(value: dict[str, Any]) -> str:
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


def _read(value: Any) -> Any:
    """The BSON value of parsed JSON; three times as fast as hooks that `json` calls for each object."""
    kind = type(value)
    if kind is dict:
        if len(value) == 1:
            ((name, inner),) = value.items()
            fast = _READERS.get(name)
            if fast is not None and type(inner) is str:
                return fast(inner)
            if name == "$date" and type(inner) is dict and inner.keys() == {"$numberLong"}:
                return DatetimeMS(int(inner["$numberLong"]))
        read = {name: item if type(item) in _THEMSELVES else _read(item) for name, item in value.items()}
        return _wrapped(read) if any(name[:1] == "$" for name in read) else read
    if kind is list:
        return [_read(item) for item in value]
    if kind is int and not -(1 << 31) <= value < 1 << 31:
        return Int64(value)
    return value


def _wrapped(value: dict[str, Any]) -> Any:
    """The BSON value of an object with names that begin with a dollar sign, whose values are converted already."""
    return _without_dbrefs(json_util.object_hook(value, json_options=_READING))


_THEMSELVES: Final = frozenset({bool, float, str, type(None)})
_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "$numberDecimal": Decimal128,
    "$numberDouble": float,
    "$numberInt": int,
    "$numberLong": Int64,
    "$oid": ObjectId,
}


def _without_dbrefs(value: Any) -> Any:
    """`json_util` makes DBRef objects of {$ref, $id} documents; here they are documents, as in `values.bson`."""
    if isinstance(value, DBRef):
        return {key: _without_dbrefs(item) for key, item in value.as_doc().items()}
    if type(value) is dict:
        return {key: _without_dbrefs(item) for key, item in value.items()}
    if type(value) is list:
        return [_without_dbrefs(item) for item in value]
    return value
