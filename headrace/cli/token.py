"""`headrace token decode`: the fields of a resume token as JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from bson import json_util

from headrace.errors import CommandError
from headrace.values.bson import decode
from headrace.values.token import ResumeToken, decode_token


def describe_token(text: str) -> str:
    """The fields of a token as JSON; `text` is its `_data` or a JSON document. Raises a server's CommandError."""
    token = decode_token(_document(text.strip()))
    return json_util.dumps(_fields(token), indent=2, json_options=json_util.RELAXED_JSON_OPTIONS)


def _document(text: str) -> dict[str, Any]:
    if not text.startswith("{"):
        return {"_data": text}
    try:
        return dict(json_util.loads(text))
    except (TypeError, ValueError) as error:
        raise CommandError(9, f"it is not JSON: {error}") from error


def _fields(token: ResumeToken) -> dict[str, Any]:
    seconds = token.cluster_time >> 32
    fields: dict[str, Any] = {
        "clusterTime": {"t": seconds, "i": token.cluster_time & 0xFFFFFFFF},
        "date": datetime.fromtimestamp(seconds, UTC).isoformat(),
        "version": token.version,
        "type": "high water mark" if token.is_high_water_mark else "event",
        "operationType": token.operation_type,
        "documentKey": None if token.document_key is None else decode(token.document_key),
        "collectionUUID": None if token.uuid is None else str(UUID(bytes=token.uuid)),
        "txnOpIndex": token.txn_op_index,
        "fromInvalidate": token.from_invalidate,
        "fragment": token.fragment,
    }
    return {name: value for name, value in fields.items() if value is not None}
