"""A resume token told to a person: what it says, part by part.

Not for programs: the parts themselves are in `token.ResumeToken`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from bson import InvalidBSON, json_util

from headrace.errors import CommandError
from headrace.values import bson, position
from headrace.values.token import ResumeToken, decode_token


def explain(token: str) -> dict[str, Any]:
    """The parts of a token as a dict that JSON can hold, in the order in which the token has them.

    `token` is its `_data`, or the whole document in Extended JSON. Raises CommandError as a server would.
    """
    parsed = decode_token(_document(token.strip()))
    told: dict[str, Any] = {
        "kind": "high water mark" if parsed.is_high_water_mark else "event",
        "clusterTime": _time(parsed.cluster_time),
        "version": parsed.version,
        "txnOpIndex": parsed.txn_op_index,
        "fromInvalidate": parsed.from_invalidate,
        "uuid": None if parsed.uuid is None else str(UUID(bytes=parsed.uuid)),
    }
    told |= {name: value for name, value in _event(parsed).items() if value is not None}
    return told | {"canonical": parsed.text()}


def explain_text(token: str) -> str:
    """The same as lines of text: `name: value`."""
    return "\n".join(f"{name}: {_line(value)}" for name, value in explain(token).items())


def _document(text: str) -> dict[str, Any]:
    if not text.startswith("{"):
        return {"_data": text}
    try:
        return bson.decode(bson.encode(json_util.loads(text)))
    except (TypeError, ValueError) as error:
        raise CommandError(9, f"the token is not JSON: {error}") from error


def _time(cluster_time: int) -> dict[str, Any]:
    seconds = position.seconds(cluster_time)
    return {
        "seconds": seconds,
        "increment": position.increment(cluster_time),
        "utc": datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z"),
    }


def _event(token: ResumeToken) -> dict[str, Any]:
    return {
        "operationType": token.operation_type,
        "documentKey": _json(token.document_key),
        "operationDescription": _json(token.operation_description),
        "fragment": token.fragment,
    }


def _json(document: bytes | None) -> Any:
    """A raw BSON document as relaxed Extended JSON."""
    if document is None:
        return None
    try:
        decoded = bson.decode(document)
    except InvalidBSON as error:
        raise CommandError(22, f"the token holds what is no BSON: {error}") from error
    return json.loads(json_util.dumps(decoded, json_options=json_util.RELAXED_JSON_OPTIONS))


def _line(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
