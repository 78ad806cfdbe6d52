"""Document validation: the `validator` of a collection, applied to documents before they are stored.

Source: MongoDB's schema validation; error 121.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from bson import Binary

from headrace import limits
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import BYPASS
from headrace.errors import CommandError
from headrace.execution.let import CommandVariables
from headrace.log_lines import RepeatedLine
from headrace.query.expressions.value_text import as_text
from headrace.query.match import parse_filter
from headrace.query.match.filter_failures import complies, failure_details
from headrace.query.operation_memory import size_of
from headrace.store.catalog import ENCRYPTED, Collection
from headrace.time_limit import limited
from headrace.values.bson import MISSING, decode
from headrace.values.paths import get_path

_ENCRYPTED_SUBTYPE: Final = 6
_REFUSED: Final = RepeatedLine()


Check = Callable[[bytes, bytes | None], None]
"""A function of a raw document and of the document that it replaces; None if it is new."""


def _accept(document: bytes, before: bytes | None) -> None:
    return None


def checker(collection: Collection, body: dict[str, Any], context: CommandContext) -> Check:
    """Return a function that raises 121 for a raw document that the collection's validator refuses.

    If the validation level is "moderate", a refused document may replace another refused one. The error has details
    of the failure, until the details of one command exceed their limit. If the validation action is "warn" or
    "errorAndLog", a log line has the collection and the `_id` of the document.
    """
    if ENCRYPTED in collection.options:
        check_rest = _checker(collection, body, context)
        return partial(_check_encrypted, collection.options[ENCRYPTED], check_rest)
    return _checker(collection, body, context)


def _check_encrypted(config: dict[str, Any], check_rest: Check, raw: bytes, before: bytes | None) -> None:
    """Raise 121 for a document with an unencrypted value in a field that must be encrypted."""
    document = decode(raw)
    for field in config["fields"]:
        value = get_path(document, tuple(field["path"].split(".")))
        if value is not MISSING and not (type(value) is Binary and value.subtype == _ENCRYPTED_SUBTYPE):
            information = {"failingDocumentId": document.get("_id")}
            raise CommandError(121, "Document failed validation", extra={"errInfo": information})
    check_rest(raw, before)


def _checker(collection: Collection, body: dict[str, Any], context: CommandContext) -> Check:
    validator = collection.options.get("validator")
    if not validator or BYPASS.of(body):
        return _accept
    action = collection.options.get("validationAction", "error")
    level = collection.options.get("validationLevel", "strict")
    if level == "off":
        return _accept
    variables = CommandVariables(context)
    matches = parse_filter(validator, variables=variables)
    described_bytes = 0

    def check(document: bytes, before: bytes | None) -> None:
        nonlocal described_bytes
        decoded = decode(document)
        if complies(matches, decoded):
            return
        if level == "moderate" and before is not None and not complies(matches, decode(before)):
            return
        if action != "error":
            _REFUSED.log(f"{collection.namespace}: document {as_text(decoded.get('_id'))} does not match the validator")
        if action == "warn":
            return
        information = {"failingDocumentId": decoded.get("_id")}
        if described_bytes < limits.VALIDATION_DETAIL_BYTES_MAX:
            details = limited(failure_details)(validator, decoded, variables)
            described_bytes += size_of(details)
            if described_bytes < limits.VALIDATION_DETAIL_BYTES_MAX:
                information["details"] = details
        raise CommandError(121, "Document failed validation", extra={"errInfo": information})

    return check


class Validator:
    """Checks documents before they are stored, also if the collection's options change while the command is paused."""

    __slots__ = ("_body", "_check", "_context", "_options")

    def __init__(self, body: dict[str, Any], context: CommandContext) -> None:
        self._body, self._context = body, context
        self._options: dict[str, Any] | None = None

    def check(self, collection: Collection, document: bytes, before: bytes | None = None) -> None:
        """Raise 121 for a raw document that the collection's validator refuses. `before`: the document that it
        replaces. May pause."""
        if collection.options is not self._options:
            self._options, self._check = collection.options, checker(collection, self._body, self._context)
        self._check(document, before)
