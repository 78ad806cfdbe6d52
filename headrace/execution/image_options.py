"""The collection option `changeStreamPreAndPostImages`, checked."""

from __future__ import annotations

from typing import Any, Final

from headrace.errors import CommandError
from headrace.values.bson import type_name

OPTION: Final = "changeStreamPreAndPostImages"


def check_database_has_images(namespace: str) -> None:
    """Raise 72 for the server's own databases, whose changes have no images."""
    database = namespace.partition(".")[0]
    if database in ("admin", "config", "local"):
        raise CommandError(72, f"{OPTION} collection option is not supported in the '{database}' database: {namespace}")


def check_images(command: str, value: Any) -> dict[str, Any]:
    """The option as it is stored, `{enabled: bool}`; raises 14, 40415 in the order of the fields, then 40414."""
    field = f"{command}.{OPTION}"
    if type(value) is not dict:
        raise CommandError(14, f"BSON field '{field}' is the wrong type '{type_name(value)}', expected type 'object'")
    for name, item in value.items():
        if name != "enabled":
            raise CommandError(40415, f"BSON field '{field}.{name}' is an unknown field.")
        if type(item) is not bool and item is not None:
            kind = type_name(item)
            raise CommandError(14, f"BSON field '{field}.enabled' is the wrong type '{kind}', expected type 'bool'")
    if value.get("enabled") is None:
        raise CommandError(40414, f"BSON field '{field}.enabled' is missing but a required field")
    return {"enabled": value["enabled"]}
