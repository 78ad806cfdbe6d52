"""Names of columns: field names without characters that Delta or Spark refuse. No two differ only by case."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from headrace import limits

_REFUSED: Final = re.compile(r"[^\w-]+|\A__delta_rs(?=_)", re.IGNORECASE)
"""Names that begin like deltalake's own columns in a merge."""


def column_name(path: tuple[str, ...], taken: Collection[str], wanted: str | None = None) -> str:
    """Return the column name of the field at the path, or `wanted`; `taken` has the used names in lower case.

    All characters but letters, digits, `_` and `-` become `_`. A name that is taken, in any case, gets a number.
    """
    text = "_".join(path) if wanted is None else wanted
    name = _REFUSED.sub("_", text)[: limits.COLUMN_NAME_LENGTH_MAX] or "_"
    unique, number = name, 2
    while unique.lower() in taken:
        unique, number = f"{name}_{number}", number + 1
    return unique
