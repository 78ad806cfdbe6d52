"""Names of tables in Spark's catalogs, with `{database}` and `{collection}`: a table for each collection.

Catalogs allow letters, digits and `_`, and most ignore case. So the collection's part of a table name is in lower case,
any other ASCII character becomes `_`, and a non-ASCII character becomes the hexadecimal digits of its bytes. Two
collections may get the same table name: the second is refused. The last commit of a table, not its name, says which
collection it belongs to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from headrace.spark.mongodb.collection_selection import Namespace, namespace_of, text_of
from headrace.spark.sinks.table_paths import PathError, expression, filled, has_placeholders
from headrace.spark.sinks.table_paths import overlap as paths_overlap
from headrace.spark.tables.position import NotAMirror, NotOurTable, TableOwner, TablePosition


def table_in(template: str, namespace: Namespace) -> str:
    """Return the name of the collection's table."""
    database, collection = map(_identifier, namespace)
    return filled(template, database, collection)


def _identifier(name: str) -> str:
    return re.sub("[^A-Za-z0-9_]", lambda match: "_" if match[0].isascii() else match[0].encode().hex(), name).lower()


def check_schema(template: str) -> None:
    """Raise PathError if the catalog of a table name is a placeholder: the session defines which catalogs exist."""
    names = template.split(".")
    if len(names) > 2 and any(has_placeholders(each) for each in names[:-2]):
        raise PathError(f"{template!r}: only the schema and the name of a table can be a collection's")


def overlap(one: str, other: str) -> bool:
    """Whether the two names may name the same table."""
    one, other = (_folded(name).replace(".", "/") for name in (one, other))
    return one.count("/") == other.count("/") and paths_overlap(one, other)


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
