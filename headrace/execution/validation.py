"""Document validation: the `validator` of a collection, applied to what is about to be stored.

Source: MongoDB's schema validation; error 121.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.dispatch.generic_arguments import BYPASS
from headrace.errors import CommandError
from headrace.query.match import parse_filter
from headrace.store.catalog import Collection
from headrace.values.bson import decode


def _accept(document: bytes) -> None:
    return None


def checker(collection: Collection, body: dict[str, Any]) -> Callable[[bytes], None]:
    """A function that raises 121 for a raw document the collection's validator refuses."""
    validator = collection.options.get("validator")
    if not validator or BYPASS.of(body):
        return _accept
    if collection.options.get("validationAction", "error") == "warn":
        return _accept
    if collection.options.get("validationLevel", "strict") == "off":
        return _accept
    matches = parse_filter(validator)

    def check(document: bytes) -> None:
        decoded = decode(document)
        if not matches(decoded):
            raise CommandError(
                121, "Document failed validation", extra={"errInfo": {"failingDocumentId": decoded.get("_id")}}
            )

    return check
