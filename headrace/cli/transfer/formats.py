"""The file formats of export and import: choose the format, write and read documents one by one.

json    a document in Extended JSON on each line; an import also reads one array of documents
csv     a line of names, then a line for each document; a dot in a name stands for a nested document
bson    documents one after the other, as mongodump writes them
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

import bson
from bson import Decimal128, Int64, ObjectId, json_util
from bson.codec_options import DatetimeConversion
from bson.json_util import JSONOptions
from bson.raw_bson import RawBSONDocument

from headrace.cli.arguments import Failed
from headrace.cli.terminal import one_line
from headrace.cli.transfer import FORMATS

_SUFFIXES: Final = {".bson": "bson", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
_JSON: Final = JSONOptions(datetime_conversion=DatetimeConversion.DATETIME_AUTO, tz_aware=True)
"""Options that keep dates which Python cannot hold."""
_INT32: Final = range(-(2**31), 2**31)
_INT64: Final = range(-(2**63), 2**63)


def format_of(path: Path | None, given: str | None) -> str:
    """Return the given format, otherwise that of the file's suffix, or JSON for a pipe. Raises Failed."""
    if given is not None:
        return given
    if path is None:
        return "json"
    if path.suffix.lower() not in _SUFFIXES:
        raise Failed(f"the format of {path} is not clear from its name: give --format {'|'.join(FORMATS)}", 2)
    return _SUFFIXES[path.suffix.lower()]


# Writing.


def value_at(document: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path through documents; None if it is missing."""
    value: Any = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def writer_of(
    kind: str, file: IO[bytes], fields: Sequence[str], canonical: bool
) -> Callable[[RawBSONDocument], object]:
    """Return a function that appends a document to a file. Raises Failed for CSV without fields."""
    if kind == "bson":
        return lambda document: file.write(bytes(document.raw))
    if kind == "json":
        return lambda document: file.write(f"{one_line(document, canonical)}\n".encode())
    if not fields:
        raise Failed("CSV has a column for each field: name them with --fields", 2)
    rows = csv.writer(_Encoder(file))
    rows.writerow(fields)
    return lambda document: rows.writerow([_cell(value_at(document, field)) for field in fields])


class _Encoder:
    """The text file that `csv` requires, on top of a file of bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, text: str) -> None:
        """Write a row."""
        self._file.write(text.encode())


def _cell(value: Any) -> str:
    """Return a value as a cell: text as it is, dates in ISO 8601, documents and arrays as JSON, null as empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float | Decimal128 | ObjectId):
        return str(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return one_line(value)


# Reading.


def documents_of(kind: str, file: IO[bytes], name: str, has_types: bool) -> Iterator[RawBSONDocument]:
    """Return the documents of a file. Raises Failed with the line or byte of an invalid document."""
    if kind == "bson":
        return _bson_documents(file, name)
    return _csv_documents(file, name, has_types) if kind == "csv" else _json_documents(file, name)


def _bson_documents(file: IO[bytes], name: str) -> Iterator[RawBSONDocument]:
    at = 0
    while head := file.read(4):
        size = int.from_bytes(head, "little", signed=True)
        body = file.read(size - 4) if 5 <= size <= 16 * 1024 * 1024 + 16 * 1024 else b""
        data = head + body
        if len(data) != size or data[-1]:
            raise Failed(f"{name}: there is no BSON document at byte {at}")
        try:
            yield RawBSONDocument(data)
        except bson.errors.InvalidBSON as error:
            raise Failed(f"{name}: the document at byte {at} is not valid BSON: {error}") from None
        at += size


def _json_documents(file: IO[bytes], name: str) -> Iterator[RawBSONDocument]:
    for number, line in enumerate(file, 1):
        text = line.strip()
        if number == 1 and text.startswith(b"["):
            yield from _json_array(text + file.read(), name)
            return
        if not text:
            continue
        try:
            document = json_util.loads(text.decode(), json_options=_JSON)
        except (TypeError, ValueError, bson.errors.BSONError) as error:
            raise Failed(f"{name}:{number}: no Extended JSON: {error}") from None
        yield _encoded(document, f"{name}:{number}:")


def _json_array(text: bytes, name: str) -> Iterator[RawBSONDocument]:
    try:
        documents = json_util.loads(text.decode(), json_options=_JSON)
    except (TypeError, ValueError, bson.errors.BSONError) as error:
        raise Failed(f"{name}: no array in Extended JSON: {error}") from None
    for number, document in enumerate(documents, 1):
        yield _encoded(document, f"{name}: element {number} of the array is")


def _encoded(document: Any, source: str) -> RawBSONDocument:
    """Encode a document as BSON. Raises Failed, with a message that begins with `source`, if this is impossible."""
    if not isinstance(document, dict):
        raise Failed(f"{source} no JSON object")
    try:
        return RawBSONDocument(bson.encode(document))
    except (bson.errors.BSONError, OverflowError, UnicodeEncodeError) as error:
        raise Failed(f"{source} no BSON: {error}") from None


def _csv_documents(file: IO[bytes], name: str, has_types: bool) -> Iterator[RawBSONDocument]:
    rows = csv.reader(line.decode("utf-8" if index else "utf-8-sig") for index, line in enumerate(file))
    try:
        yield from _rows(rows, name, has_types)
    except (csv.Error, UnicodeDecodeError) as error:
        raise Failed(f"{name}:{rows.line_num + 1}: no CSV in UTF-8: {error}") from None


def _rows(rows: Any, name: str, has_types: bool) -> Iterator[RawBSONDocument]:
    header = next(rows, None)
    if header is None:
        return
    columns = [_column(title, has_types, name) for title in header]
    for row in rows:
        if len(row) != len(columns):
            raise Failed(f"{name}:{rows.line_num}: {len(row)} cells, and {len(columns)} columns")
        document: dict[str, Any] = {}
        for (path, convert), cell in zip(columns, row):
            if cell == "":
                continue
            try:
                value = convert(cell)
            except (ArithmeticError, TypeError, ValueError, bson.errors.BSONError) as error:
                raise Failed(f"{name}:{rows.line_num}: {'.'.join(path)}: {error}") from None
            _put(document, path, value)
        yield _encoded(document, f"{name}:{rows.line_num}:")


def _column(title: str, has_types: bool, name: str) -> tuple[list[str], Callable[[str], Any]]:
    """Return the path of a column's values, and the function that converts a cell. Raises Failed for unknown types."""
    if not has_types:
        return title.split("."), _automatic
    field, _, kind = title.rpartition(".")
    if not kind.endswith("()") or kind[:-2] not in _TYPES or not field:
        raise Failed(f"{name}:1: {title!r} is not a typed column, such as qty.int32(): {', '.join(sorted(_TYPES))}")
    return field.split("."), _TYPES[kind[:-2]]


def _put(document: dict[str, Any], path: list[str], value: Any) -> None:
    for step in path[:-1]:
        nested = document.setdefault(step, {})
        if not isinstance(nested, dict):
            raise Failed(f"the columns {step} and {'.'.join(path)} exclude each other")
        document = nested
    document[path[-1]] = value


def _automatic(cell: str) -> Any:
    """Return a number if the cell is exactly how Python writes it, otherwise text: `007` and `1e5` stay text."""
    try:
        number = int(cell)
    except ValueError:
        number = None
    if number is not None and str(number) == cell:
        return number if number in _INT32 else Int64(number) if number in _INT64 else cell
    try:
        return float(cell) if "." in cell and repr(float(cell)) == cell else cell
    except ValueError:
        return cell


def _boolean(cell: str) -> bool:
    words = {"1": True, "false": False, "0": False, "true": True}
    if cell.lower() not in words:
        raise ValueError(f"{cell!r} is neither true nor false")
    return words[cell.lower()]


def _date(cell: str) -> datetime:
    at = datetime.fromisoformat(cell)
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _int32(cell: str) -> int:
    number = int(cell)
    if number not in _INT32:
        raise ValueError(f"{cell} does not fit into 32 bits")
    return number


_TYPES: Final[dict[str, Callable[[str], Any]]] = {
    "auto": _automatic,
    "boolean": _boolean,
    "date": _date,
    "decimal": Decimal128,
    "double": float,
    "int32": _int32,
    "int64": lambda cell: Int64(int(cell)),
    "json": json_util.loads,
    "objectid": ObjectId,
    "string": str,
}


def metadata_text(metadata: Mapping[str, Any]) -> str:
    """Return the text of mongodump's file `COLLECTION.metadata.json`."""
    return json.dumps(json.loads(one_line(metadata, canonical=True)), separators=(",", ":"))
