"""Checks of the options of stages and operators, with the codes of arguments that MongoDB declares by type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from headrace.errors import CommandError
from headrace.values.bson import type_name

ANY: Final = "any"
NUMBER: Final = "number"
_NUMBERS: Final = frozenset({"decimal", "double", "int", "long"})


def check_options(
    path: str, spec: Any, types: Mapping[str, str], required: Iterable[str] = (), *, not_object: int = 9
) -> None:  # fmt: skip
    """Raise `not_object` for no object, 40415 for an unknown field, 14 for a wrong type, 40414 for a missing field.

    `types`: the name of each field's type. A type that ends with "?" allows null.
    """
    if type(spec) is not dict:
        raise CommandError(not_object, f"{path} must be an object, but found: {type_name(spec)}")
    for field, value in spec.items():
        if field not in types:
            raise CommandError(40415, f"BSON field '{path}.{field}' is an unknown field.")
        check_type(f"{path}.{field}", value, types[field])
    for field in required:
        if field not in spec:
            raise CommandError(40414, f"BSON field '{path}.{field}' is missing but a required field")


def check_object(spec: Any, code: int, message: str) -> None:
    """Raise `code` for no object. The type follows the message."""
    if type(spec) is not dict:
        raise CommandError(code, f"{message} {type_name(spec)}")


def check_type(path: str, value: Any, wanted: str) -> None:
    """Raise 14 for a value of another type."""
    name, expected = type_name(value), wanted.rstrip("?")
    if expected in (name, ANY) or (expected == NUMBER and name in _NUMBERS) or (value is None and wanted[-1] == "?"):
        return
    raise CommandError(14, f"BSON field '{path}' is the wrong type '{name}', expected type '{expected}'")


def one_of(path: str, value: str, values: tuple[str, ...]) -> str:
    """Return the value of an enumeration. Raises 2 for another one."""
    if value not in values:
        raise CommandError(2, f"Enumeration value '{value}' for field '{path}' is not a valid value.")
    return value
