"""Bulk writes in which a server refuses some documents for their content and does the other writes.

A refusal for another reason (privileges, a full disk, another primary) is an error, because it does not depend on the
document. `REFUSALS` has the codes of the first kind; any other code is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bson.errors import InvalidDocument
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError

REFUSALS: Final[dict[int, str]] = {
    2: "BadValue",
    52: "DollarPrefixedFieldName",
    55: "InvalidDBRef",
    56: "EmptyFieldName",
    57: "DottedFieldName",
    121: "DocumentValidationFailure",
    171: "CannotIndexParallelArrays",
    201: "CannotBuildIndexKeys",
    10334: "BSONObjectTooLarge",
    11000: "DuplicateKey",
    16675: "a text index with an array beside the text",
    16755: "geo keys cannot be extracted",
    16756: "geo keys cannot be extracted",
    16766: "a hashed index of an array",
    17261: "a language that is no string, in a text index",
    17262: "a language that a text index does not know",
    17280: "KeyTooLong",
    17419: "the document is too large after the update",
    17420: "the document is too large after the update",
}
"""The codes that refuse a document, each with its name or its meaning."""
_DUPLICATE_KEY: Final = 11000


def write_all(collection: Collection[dict[str, Any]], operations: Sequence[Any]) -> dict[int, str]:
    """Do the operations, in any order. Return the reasons of refused operations, by their numbers.

    Raise pymongo's BulkWriteError for a refusal that is not about a document, and pymongo's other errors.
    """
    refused = _write(collection, operations)
    while any(code == _DUPLICATE_KEY for code, _ in refused.values()):
        # The write may have run before the write that releases the unique value.
        numbers = list(refused)
        again = _write(collection, [operations[number] for number in numbers])
        refused = {numbers[number]: why for number, why in again.items()}
        if len(refused) == len(numbers):
            break
    return {number: text for number, (_, text) in sorted(refused.items())}


def _write(collection: Collection[dict[str, Any]], operations: Sequence[Any]) -> dict[int, tuple[int, str]]:
    """Return the numbers of refused operations, with code and text."""
    try:
        collection.bulk_write(operations, ordered=False)
    except BulkWriteError as error:
        errors = error.details["writeErrors"]
        if error.details.get("writeConcernErrors") or any(each["code"] not in REFUSALS for each in errors):
            raise
        return {each["index"]: (each["code"], f"{each['errmsg']} ({each['code']})") for each in errors}
    except InvalidDocument as error:
        # The driver does not send the document, and does not say which one it is.
        if len(operations) == 1:
            return {0: (10334, str(error))}
        each_alone = enumerate(_write(collection, [operation]) for operation in operations)
        return {number: why[0] for number, why in each_alone if why}
    return {}
