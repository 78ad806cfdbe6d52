"""Paths and names with `{database}` and `{collection}`: a table for each collection, and which collections have one.

A name in a path keeps its letters, digits, `-`, `_` and `.`; any other character becomes `~` and two hexadecimal digits
for each of its bytes. A leading `_` or `.` is escaped, too, because readers of tables ignore such names as hidden
files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final

from headrace.spark.mongodb.collection_selection import Namespace, namespace_of, text_of
from headrace.spark.tables.progress import NotAMirror, NotOurTable, TableOwner, TablePosition
from headrace.spark.tables.table_location import location_of

_PLACEHOLDERS: Final = {"collection": r"(?P<collection>(?![_.])[^/]+)", "database": r"(?P<database>(?![_.])[^/]+)"}
_PLACEHOLDER: Final = re.compile(r"\{([^{}/]*)\}")
_NAME_BYTES_MAX: Final = 200
"""The most bytes of a file name; an escaped byte takes three. A collection's name has at most 255."""

_SHORTENED: Final = "~~"
"""The mark after a shortened name; no other escaped name contains it."""


class PathError(ValueError):
    """The placeholders of a path are wrong: it does not give each collection a table."""


def has_placeholders(path: str) -> bool:
    """Whether the path has `{collection}` or another name in braces."""
    return _PLACEHOLDER.search(path) is not None


def check_placeholders(path: str, database: str | None) -> None:
    """Raise PathError if a path, or a name in a catalog, does not give each collection its own table."""
    placeholders = _PLACEHOLDER.findall(path)
    if unknown := sorted(set(placeholders) - _PLACEHOLDERS.keys()):
        raise PathError(f"{path!r} has {{{unknown[0]}}}: there are {{database}} and {{collection}}")
    if "collection" not in placeholders or (database is None and "database" not in placeholders):
        needed = "{collection}" if database is not None else "{database} and {collection}"
        raise PathError(f"{path!r} needs {needed}: each collection has a table of its own")
    if len(set(placeholders)) < len(placeholders):
        raise PathError(f"{path!r} names the same twice")


def path_of(path: str, namespace: Namespace) -> str:
    """Return the path of the collection's table."""
    return filled(path, escaped(namespace[0]), escaped(namespace[1]))


def filled(template: str, database: str, collection: str) -> str:
    """Return the template with these names in place of its placeholders."""
    names = {"database": database, "collection": collection}
    return _PLACEHOLDER.sub(lambda placeholder: names[placeholder[1]], template)


def overlap(one: str, other: str) -> bool:
    """Whether tables of the two paths may be the same, or one inside the other."""
    for mine, others in zip(one.rstrip("/").split("/"), other.rstrip("/").split("/"), strict=False):
        if mine != others and not has_placeholders(mine) and not has_placeholders(others):
            return False
        if mine != others and not re.fullmatch(expression(mine), others) and not re.fullmatch(expression(others), mine):
            return False
    return True


def tables_at(path: str, database: str | None, known: Iterable[Namespace] = ()) -> Iterator[Namespace]:
    """Yield the collections that have a folder at such a path. A shortened name is found only if the collection is
    `known`."""
    for name in known:
        if is_shortened(path_of(path, name)) and has_files(path_of(path, name)):
            yield name
    pieces = path.split("/")
    fixed = next(number for number, piece in enumerate(pieces) if has_placeholders(piece))
    given = {"database": database} if database is not None else {}
    for names in _walk("/".join(pieces[:fixed]), pieces[fixed:], given):
        if names.keys() >= _PLACEHOLDERS.keys():
            yield names["database"], names["collection"]


def is_shortened(path: str) -> bool:
    """Whether the path has a shortened name, which cannot be read back."""
    return _SHORTENED in path


def has_files(path: str) -> bool:
    """Whether the folder exists and is not empty."""
    location = location_of(path)
    return location.exists() and bool(location.names())


def _walk(folder: str, pieces: list[str], names: dict[str, str]) -> Iterator[dict[str, str]]:
    if not pieces:
        yield names
        return
    if not has_placeholders(pieces[0]):
        yield from _walk(f"{folder}/{pieces[0]}", pieces[1:], names)
        return
    location = location_of(folder or "/")
    for name in sorted(location.folders()) if location.exists() else []:
        match = re.fullmatch(expression(pieces[0]), name)
        if match:
            given = {placeholder: unescaped(text) for placeholder, text in match.groupdict().items()}
            if None not in given.values() and all(
                names.get(placeholder, text) == text for placeholder, text in given.items()
            ):
                more = {placeholder: text for placeholder, text in given.items() if text is not None}
                yield from _walk(f"{folder}/{name}", pieces[1:], names | more)


def expression(piece: str) -> str:
    """Return a regular expression that matches the names of a piece of a path."""
    texts = _PLACEHOLDER.split(piece)
    return "".join(
        _PLACEHOLDERS.get(text, "[^/]+") if number % 2 else re.escape(text) for number, text in enumerate(texts)
    )


def escaped(name: str) -> str:
    """Return the name as it is in a path; a long name is shortened, with a hash."""
    text = re.sub(r"[^A-Za-z0-9_.-]", _hexadecimal, name)
    text = re.sub(r"\A[_.]", _hexadecimal, text)
    if len(text) > _NAME_BYTES_MAX:
        text = f"{text[:_NAME_BYTES_MAX]}{_SHORTENED}{blake2b(name.encode(), digest_size=16).hexdigest()}"
    return text


def _hexadecimal(match: re.Match[str]) -> str:
    return "".join(f"~{byte:02X}" for byte in match[0].encode())


def unescaped(text: str) -> str | None:
    """Return the name that `escaped` turned into this text; None if it was shortened, or if no name gives this text."""
    pieces = re.split(r"((?:~[0-9A-F]{2})+)", text)
    try:
        name = "".join(
            bytes.fromhex(piece.replace("~", "")).decode() if number % 2 else piece
            for number, piece in enumerate(pieces)
        )
    except UnicodeDecodeError:
        return None
    return name if escaped(name) == text and not is_shortened(text) else None


def table_in(template: str, namespace: Namespace) -> str:
    """Return the name of the collection's table in one of Spark's catalogs.

    Catalogs allow letters, digits and `_`, and most ignore case. So the collection's part of a table name is in lower
    case, any other ASCII character becomes `_`, and a non-ASCII character becomes the hexadecimal digits of its bytes.
    Two collections may get the same table name: the second is refused (`TakenNames`). The last commit of a table, not
    its name, says which collection it belongs to.
    """
    database, collection = map(_identifier, namespace)
    return filled(template, database, collection)


def _identifier(name: str) -> str:
    return re.sub("[^A-Za-z0-9_]", lambda match: "_" if match[0].isascii() else match[0].encode().hex(), name).lower()


def check_schema(template: str) -> None:
    """Raise PathError if the catalog of a table name is a placeholder: the session defines which catalogs exist."""
    names = template.split(".")
    if len(names) > 2 and any(has_placeholders(each) for each in names[:-2]):
        raise PathError(f"{template!r}: only the schema and the name of a table can be a collection's")


def names_overlap(one: str, other: str) -> bool:
    """Whether the two names may name the same table."""
    one, other = (_folded(name).replace(".", "/") for name in (one, other))
    return one.count("/") == other.count("/") and overlap(one, other)


class TakenNames:
    """The collection that has each table of a sink, in the process that writes them."""

    def __init__(self) -> None:
        self._taken: dict[str, Namespace] = {}

    def take(self, table: str, namespace: Namespace) -> None:
        """Raise NotOurTable if another collection has the table."""
        other = self._taken.setdefault(_folded(table), namespace)
        if other != namespace:
            raise NotOurTable(
                f"{text_of(other)} and {text_of(namespace)} would have one table, {table}: give one of them a job of "
                "its own"
            )


def tables_in_catalog(template: str, known: Iterable[Namespace]) -> Iterator[Namespace]:
    """Yield the collections that have a table, found by its name or by the owner in its last commit. Start Spark if
    needed.

    The owner of a table is not read if its collection is `known`.
    """
    there = {_folded(name): name for name in _listed(template)}
    names = {namespace: _folded(table_in(template, namespace)) for namespace in known}
    yield from (namespace for namespace, name in names.items() if name in there)
    for name in sorted(there.keys() - set(names.values())):
        owned = _owner_of(there[name])
        if owned and _folded(table_in(template, owned)) == name:
            yield owned


def _folded(name: str) -> str:
    return name.replace("`", "").lower()


def _listed(template: str) -> Iterator[str]:
    """Yield the full names of the tables that match the template."""
    from headrace.spark.session import get_session

    session = get_session()
    *above, table = template.replace("`", "").split(".")
    for schema in _schemas(above):
        quoted = ".".join(f"`{part}`" for part in schema)
        if session.catalog.databaseExists(quoted):
            rows = session.sql(f"SHOW TABLES IN {quoted}").collect()
            for row in rows:
                if not row.isTemporary and re.fullmatch(expression(table), row.tableName, re.IGNORECASE):
                    yield ".".join([*schema, row.tableName])


def _schemas(template: list[str]) -> Iterator[list[str]]:
    from headrace.spark.session import get_session

    *above, last = template
    if not has_placeholders(last):
        yield template
        return
    inside = f" IN {'.'.join(f'`{part}`' for part in above)}" if above else ""
    for row in get_session().sql(f"SHOW NAMESPACES{inside}").collect():
        name = row.namespace.replace("`", "").rpartition(".")[2]
        if re.fullmatch(expression(last), name, re.IGNORECASE):
            yield [*above, name]


def _owner_of(name: str) -> Namespace | None:
    """Return the collection whose rows the table holds; None if Headrace did not write the table."""
    from pyspark.errors import AnalysisException

    from headrace.spark.session import get_session
    from headrace.spark.tables.catalog.catalog_table import CatalogTable

    try:
        text = CatalogTable[TablePosition](name, get_session).state_text()
    except (AnalysisException, NotAMirror):
        return None
    owner = TableOwner.of(json.loads(text).get("owner", "")) if text else None
    return namespace_of(owner.namespace) if owner and "." in owner.namespace else None
