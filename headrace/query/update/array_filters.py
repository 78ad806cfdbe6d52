"""`arrayFilters`: the elements that `$[identifier]` selects.

Each filter has fields that all begin with the same identifier, which denotes the element: {"i.a": {$gt: 1}}.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from headrace.errors import CommandError
from headrace.query.update.update_tree import ArrayFilters
from headrace.values.bson.to_string import to_string

_IDENTIFIER: Final = re.compile(r"[a-z][a-zA-Z0-9]*")
_LOGICAL: Final = frozenset({"$and", "$nor", "$or"})


def parse_array_filters(filters: list[dict[str, Any]], collation: Any) -> ArrayFilters:
    """The predicates on `{identifier: element}`, by identifier.

    Raises 9 for a filter without exactly one identifier and for a repeated one, 2 for an invalid identifier, 224 for
    `$expr` and `$jsonSchema`, and the errors of the filters.
    """
    from headrace.query.match import parse_filter

    tests: ArrayFilters = {}
    for document in filters:
        try:
            test = parse_filter(document, collation=collation, plain=True)
        except CommandError as failure:
            raise failure.behind("Error parsing array filter :: caused by :: ") from None
        identifier = _identifier(document)
        if identifier in tests:
            raise CommandError(9, f"Found multiple array filters with the same top-level field name {identifier}")
        tests[identifier] = test.node.compiled()  # the whole update is limited
    return tests


def _identifier(document: dict[str, Any]) -> str:
    names = list(dict.fromkeys(_top_level(document)))
    if not names:
        raise CommandError(
            9,
            "Cannot use an expression without a top-level field name in arrayFilters"
            if document
            else f"Cannot use an expression without a top-level field name in arrayFilters: {to_string(document)}",
        )
    if len(names) > 1:
        raise CommandError(
            9,
            "Error parsing array filter :: caused by :: Expected a single top-level field name, "
            f"found '{names[0]}' and '{names[1]}'",
        )
    if not _IDENTIFIER.fullmatch(names[0]):
        raise CommandError(
            2,
            "Error parsing array filter :: caused by :: The top-level field name must be an alphanumeric "
            f"string beginning with a lowercase letter, found '{names[0]}'",
        )
    return names[0]


def _top_level(document: dict[str, Any]) -> Iterator[str]:
    for name, value in document.items():
        if not name.startswith("$"):
            yield name.split(".", 1)[0]
        elif name in _LOGICAL and type(value) is list:
            for item in value:
                if type(item) is dict:
                    yield from _top_level(item)
