"""`headrace token decode`: the fields of a resume token as JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from bson import InvalidBSON, json_util

from headrace.errors import CommandError
from headrace.values import position
from headrace.values.bson import decode
from headrace.values.token import ResumeToken, decode_token


def describe_token(text: str) -> str:
    """Return the fields of a token as a JSON document. Raises the CommandError that a server would raise.

    `text` is the token's `_data`, or its document in Extended JSON.
    """
    token = decode_token(_document(text.strip()))
    return json_util.dumps(_fields(token), indent=2, json_options=json_util.RELAXED_JSON_OPTIONS)


def parsed_token(text: str) -> tuple[str, ResumeToken]:
    """Return a token's `_data`, which sorts as tokens do, and its decoded fields. Raises CommandError."""
    document = _document(text.strip())
    token = decode_token(document)
    return str(document["_data"]).upper(), token


def _document(text: str) -> dict[str, Any]:
    if not text.startswith("{"):
        return {"_data": text}
    try:
        return dict(json_util.loads(text))
    except (TypeError, ValueError) as error:
        raise CommandError(9, f"it is not JSON: {error}") from error


def _fields(token: ResumeToken) -> dict[str, Any]:
    at = token.cluster_time
    fields: dict[str, Any] = {
        "clusterTime": {"t": position.seconds(at), "i": position.increment(at)},
        "date": datetime.fromtimestamp(position.seconds(at), UTC).isoformat(),
        "version": token.version,
        "type": "high water mark" if token.is_high_water_mark else "event",
        "operationType": token.operation_type,
        "documentKey": _decoded(token.document_key),
        "collectionUUID": None if token.uuid is None else str(UUID(bytes=token.uuid)),
        "txnOpIndex": token.txn_op_index,
        "fromInvalidate": token.from_invalidate,
        "fragment": token.fragment,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _decoded(document: bytes | None) -> dict[str, Any] | None:
    if document is None:
        return None
    try:
        return decode(document)
    except InvalidBSON as error:
        raise CommandError(22, f"the token holds a document that is not BSON: {error}") from error
