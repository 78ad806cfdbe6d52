"""`headrace token decode`: what a resume token says, as JSON for a person to read."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from bson import json_util

from headrace.errors import CommandError
from headrace.values.token import decode_token


def describe_token(text: str) -> str:
    """The parts of a token, given as its `_data` or as a JSON document; raises CommandError as a server would."""
    token = decode_token(_document(text.strip()))
    parts = {field.name: _shown(field.name, getattr(token, field.name)) for field in dataclasses.fields(token)}
    return json_util.dumps(parts, indent=2, json_options=json_util.RELAXED_JSON_OPTIONS)


def _document(text: str) -> dict[str, Any]:
    if not text.startswith("{"):
        return {"_data": text}
    try:
        return dict(json_util.loads(text))
    except (json.JSONDecodeError, TypeError, ValueError) as error:
        raise CommandError(9, f"the token is not JSON: {error}") from error


def _shown(name: str, value: Any) -> Any:
    """Bytes as hexadecimal digits; a cluster time as seconds and increment."""
    if name == "cluster_time" and isinstance(value, int):
        return {"seconds": value >> 32, "increment": value & 0xFFFFFFFF}
    if isinstance(value, bytes):
        return value.hex()
    return value
