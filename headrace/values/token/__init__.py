"""Resume tokens of change streams: decoding them, and making them byte for byte like MongoDB."""

from headrace.values.token.make_token import (
    EVENT,
    HIGH_WATER_MARK,
    VERSION_LATEST,
    TokenMaker,
    event_identifier,
    high_water_mark,
    make_event_token,
)
from headrace.values.token.resume_token import ResumeToken, decode_token

__all__ = [
    "EVENT",
    "HIGH_WATER_MARK",
    "VERSION_LATEST",
    "ResumeToken",
    "TokenMaker",
    "decode_token",
    "event_identifier",
    "high_water_mark",
    "make_event_token",
]
