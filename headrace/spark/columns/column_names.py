"""Names of columns: the field's, with what Delta and Spark refuse replaced; no two differ by case only."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from headrace import limits

_REFUSED: Final = re.compile(r"[^\w-]+|\A__delta_rs(?=_)", re.IGNORECASE)
"""deltalake has columns of its own in a merge, whose names begin so."""


def column_name(path: tuple[str, ...], taken: Collection[str], wanted: str | None = None) -> str:
    """The column of the field at the path, or that `wanted`; `taken` are the names that there are, in lower case.

    All but letters, digits, `_` and `-` become `_`; a name that is taken, whatever its case, gets a number.
    """
    text = "_".join(path) if wanted is None else wanted
    name = _REFUSED.sub("_", text)[: limits.COLUMN_NAME_LENGTH_MAX] or "_"
    unique, number = name, 2
    while unique.lower() in taken:
        unique, number = f"{name}_{number}", number + 1
    return unique
