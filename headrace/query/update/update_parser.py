"""Parses the update of a command.

Rule: a list is a pipeline. A document whose first field begins with a dollar sign has operators. Any other document is
a replacement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import CommandError
from headrace.query.update.array_filters import parse_array_filters
from headrace.query.update.operator_update import parse_operators
from headrace.query.update.pipeline_update import parse_pipeline_update
from headrace.query.update.replacement_update import parse_replacement
from headrace.query.update.update import Update
from headrace.time_limit import limited_call


@limited_call
def parse_update(
    update: dict[str, Any] | list[Any],
    *,
    array_filters: list[dict[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
    collation: Any = None,
    multi: bool = False,
    upsert: bool = False,
) -> Update:
    """The parsed update. It can be reused for the same arguments, and references values of `update`.

    Pipelines may refer to `variables`. Raises `CommandError` for every error that does not depend on a
    document: 2, 9, 14, 40, 52, 56, 72, ….
    """
    if type(update) is list:
        if array_filters:
            raise CommandError(9, "arrayFilters may not be specified for pipeline-syle updates")
        return parse_pipeline_update(update, variables, collation)
    first = next(iter(update), "")  # type: ignore[call-overload]
    if not first.startswith("$"):
        if array_filters:
            raise CommandError(9, "arrayFilters may not be specified for replacement-style updates")
        if multi:
            raise CommandError(9, "multi update is not supported for replacement-style update")
        return parse_replacement(update)  # type: ignore[arg-type]
    filters = parse_array_filters(array_filters, collation) if array_filters else {}
    return parse_operators(update, filters, collation)  # type: ignore[arg-type]
