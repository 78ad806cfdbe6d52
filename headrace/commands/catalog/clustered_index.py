"""The option `clusteredIndex`: as clients send it, as it is stored, and its checks against other options.

Source: MongoDB's documentation of clustered collections; its codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from headrace.dispatch.arguments import Field, Fields, FieldType, boolean, document, number, string
from headrace.errors import CommandError
from headrace.store.catalog import Collection
from headrace.values.bson import to_string

OPTION: Final = "clusteredIndex"
SECONDS: Final = "expireAfterSeconds"
_VERSION: Final = number("v", 2)
_UNIQUE: Final = boolean("unique", required=True)
_SPECIFICATION: Final = Fields(_VERSION, document("key", required=True), string("name"), _UNIQUE)
_SECONDS_MAX: Final = (2**63 - 1) // 1000


def _check(path: str, value: Any) -> None:
    if type(value) is dict:
        _SPECIFICATION.check(path, value)


FIELD: Final[Field[Any]] = Field(OPTION, FieldType(("bool", "object")), None, check=_check)


def clustered_index(value: Any) -> dict[str, Any] | None:
    """Return the option as it is stored; None for `false`. Raise 197, 5979700, 5979703 or 5979704."""
    if value is None or value is False:
        return None
    if value is True:
        raise CommandError(
            5979703,
            "The 'clusteredIndex' legacy format {clusteredIndex: <bool>} is only supported for specific internal "
            "collections and vice versa",
        )
    version = _VERSION.of(value)
    made = {"v": version, "key": value["key"], "name": value.get("name") or "_id_", "unique": True}
    if not _UNIQUE.of(value):
        raise CommandError(5979700, "The clusteredIndex option requires unique: true to be specified")
    if list(value["key"].items()) != [("_id", 1)] or type(value["key"]["_id"]) is bool:
        raise CommandError(197, "The clusteredIndex option is only supported for key: {_id: 1}")
    if version != 2:
        raise CommandError(
            5979704,
            f"Invalid clusteredIndex specification {to_string(made)}; cannot create a clusteredIndex with v={version}",
        )
    return made


def check_with(body: dict[str, Any]) -> None:
    """Raise 72, 6026500, 6026501, 6049200, 6049204 or 6127800 for options that do not go with `clusteredIndex`."""
    for code, name in ((6049200, "size"), (6049204, "max")):
        if body.get(name) is not None:
            raise CommandError(
                code,
                f"'{name}' field for capped collections is not allowed on clustered collections. Did you mean "
                "'capped: true' with 'expireAfterSeconds'?",
            )
    if body.get("capped"):
        raise CommandError(
            6127800, "Clustered capped collection only available with 'enableTestCommands' server parameter"
        )
    if body[OPTION] is False:
        return
    if body.get("viewOn") is not None:
        raise CommandError(6026500, "The 'clusteredIndex' option is not supported with views")
    if body.get("idIndex"):
        raise CommandError(72, "The 'clusteredIndex' option is not supported with the 'idIndex' option")
    if body.get("autoIndexId") is not None and not body["autoIndexId"]:
        raise CommandError(6026501, "The 'clusteredIndex' option does not support {autoIndexId: false}")


def check_seconds(seconds: int) -> None:
    """Raise 72 if the age of expiring documents is out of range."""
    if not 0 <= seconds <= _SECONDS_MAX:
        raise CommandError(
            72, f"TTL index '{SECONDS}' option must be within 0 and {_SECONDS_MAX} for a clustered index"
        )


def check_new_indexes(collection: Collection | None, specs: Sequence[dict[str, Any]]) -> None:
    """Raise 6243700 for a `clustered` index that is not the collection's clustered index, 6100900 without one."""
    for spec in specs:
        if not spec.get("clustered"):
            continue
        if collection is None:
            raise CommandError(6100900, "Cannot implicitly create a new collection with createIndex 'clustered' option")
        if not collection.clustered or spec["key"] != {"_id": 1}:
            raise CommandError(
                6243700,
                "Cannot create index with option 'clustered' that does not match an existing clustered index",
            )
