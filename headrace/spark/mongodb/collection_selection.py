"""The collections that a stream of several follows: names with `*`, of one database or of the deployment.

Never selected, whatever the names: `system.` collections; temporary collections of `$out` and of renames across
databases, because their content ends up in another collection; and the collections with the position of another job's
sink `mongodb`, which must not be copied.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from bson import Regex

from headrace import limits
from headrace.spark.errors import OptionError, shown

Namespace = tuple[str, str]
"""A database and a collection in it."""

_INTERNAL: Final = re.compile(
    r"system\.|headrace\.(positions|redo|tokens)$|tmp\.(agg_out|mr)\.|tmp.{5}\.renameCollection$", re.DOTALL
)
DATABASES: Final = frozenset({"admin", "config", "local"})


@dataclass(frozen=True, slots=True)
class CollectionSelection:
    """The collections of `database` whose names match one of `patterns`; without a database, patterns begin with one.

    Without patterns every collection is selected.
    """

    database: str | None
    patterns: tuple[str, ...] = ()

    def matches(self, namespace: Namespace) -> bool:
        """Whether the collection is selected."""
        return _matches(self, namespace)

    def text(self) -> str:
        """Return the selection as JSON, for an offset."""
        return json.dumps([self.database, *self.patterns])

    @classmethod
    def of(cls, text: str) -> CollectionSelection:
        """Return the selection from the text that `text` returned."""
        database, *patterns = json.loads(text)
        return cls(database, tuple(patterns))

    def stages(self) -> tuple[dict[str, Any], ...]:
        """Return the stages that filter a database's or deployment's change stream down to the selection."""
        if not self.patterns:
            return ()
        each = [*_conditions(self, "ns"), *_conditions(self, "to")]
        return ({"$match": {"$or": [*each, {"operationType": "invalidate"}]}},)


def parse_selection(database: str | None, names: Sequence[Any]) -> CollectionSelection:
    """Return the selection of a user's names; raise OptionError."""
    for name in names:
        if not isinstance(name, str) or not name:
            raise OptionError(f"the option 'collections' is an array of names, and {name!r} is none")
        if database is None and not all(name.partition(".")[::2]):
            raise OptionError(
                f"the option 'collections' has {name!r}, which names no database: without the option 'database' it is "
                "'database.collection'"
            )
    return CollectionSelection(database, tuple(dict.fromkeys(names)))


def namespace_of(text: str) -> Namespace:
    """Return the namespace of the text `database.collection`."""
    database, _, collection = text.partition(".")
    return database, collection


def text_of(namespace: Namespace) -> str:
    """Return `database.collection`, which `namespace_of` parses."""
    return ".".join(namespace)


@lru_cache(maxsize=4096)
def _matches(selection: CollectionSelection, namespace: Namespace) -> bool:
    database, collection = namespace
    if selection.database not in {None, database} or database in DATABASES or _INTERNAL.match(collection):
        return False
    return not selection.patterns or any(
        re.fullmatch(into_database, database, re.DOTALL) and re.fullmatch(into_collection, collection, re.DOTALL)
        for into_database, into_collection in _expressions(selection)
    )


def _expressions(selection: CollectionSelection) -> Iterable[tuple[str, str]]:
    """Yield each pattern as two regular expressions: of the database and of the collection."""
    for pattern in selection.patterns:
        both = (selection.database, pattern) if selection.database is not None else namespace_of(pattern)
        yield re.escape(both[0]) if selection.database is not None else _expression(both[0]), _expression(both[1])


def _expression(pattern: str) -> str:
    return ".*".join(re.escape(piece) for piece in pattern.split("*"))


def _conditions(selection: CollectionSelection, field: str) -> Iterable[dict[str, Any]]:
    for pattern, (database, collection) in zip(selection.patterns, _expressions(selection), strict=True):
        name = pattern if selection.database is not None else namespace_of(pattern)[1]
        condition = {f"{field}.coll": Regex(f"^{collection}$", "s") if "*" in name else name}
        if selection.database is None:
            condition[f"{field}.db"] = Regex(f"^{database}$", "s")
        yield condition


_COLLECTION_BYTES_MAX: Final = limits.NAMESPACE_BYTES_MAX - 2
"""The most bytes of a collection's name, in a database whose name has one."""
_NOT_IN_DATABASES: Final = re.compile(r'[/\\. "$\0]')
_NOT_IN_COLLECTIONS: Final = re.compile(r"\A\.|[$\0]|\.\Z")


class NameNotPossible(ValueError):
    """No database or collection has this name."""


def check_database_name(name: str) -> str:
    """Return the name. Raise NameNotPossible, without the name of the key, if no database can have it."""
    without = '/ \\ . " $, a blank or NUL'
    return _checked(name, "a database", limits.DATABASE_NAME_BYTES_MAX, _NOT_IN_DATABASES, without)


def check_collection_name(name: str) -> str:
    """Return the name. Raise NameNotPossible, without the name of the key, if no collection can have it."""
    without = "$, NUL, or a dot at its beginning or end"
    return _checked(name, "a collection", _COLLECTION_BYTES_MAX, _NOT_IN_COLLECTIONS, without)


def _checked(name: str, what: str, bytes_max: int, refused: re.Pattern[str], without: str) -> str:
    if not 0 < len(name.encode()) <= bytes_max or refused.search(name):
        possible = f"is the name of {what}, of at most {bytes_max} bytes, without {without}"
        raise NameNotPossible(f"{possible}, not {shown(name)}")
    return name
