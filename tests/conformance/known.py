"""Recorded cases that Headrace answers otherwise on purpose, each with its rule in docs/differences.md."""

from __future__ import annotations

from typing import Final

_DOLLAR: Final = "field names that begin with a dollar sign are stored, as since 5.0"
_DROP: Final = "drop of a collection that is not there answers ok, as since 7.0"
_ENVIRONMENT: Final = "the answer depends on the machine or on what ran before"
_DATE: Final = "$dateAdd and $dateSubtract keep milliseconds, as since 5.0"
_FILTER: Final = "$filter takes a limit, as since 5.2"
_MOD: Final = "$mod of NaN and Infinity never matches, as since 5.1"
_NEAR: Final = "$near in $match is 5626500, as since 5.0"
_CLOSED: Final = "a stream that is invalidated as it is opened answers the token of that, as since 5.0"
_ORDER: Final = (
    "the order in which dropDatabase drops collections is unspecified (MongoDB's follows their random UUIDs)"
)

KNOWN: Final[dict[str, str]] = {
    "events/cluster-drop-missing": _DROP,
    "events/cluster-insert-dollar-field": _DOLLAR,
    "events/coll-drop-missing": _DROP,
    "events/coll-insert-dollar-field": _DOLLAR,
    "events/db-drop-missing": _DROP,
    "events/db-insert-dollar-field": _DOLLAR,
    "expressions/00005": _DATE,
    "expressions/00061": _FILTER,
    "expressions/00075": _DATE,
    "expressions/00082": _FILTER,
    "expressions/00084": _FILTER,
    "expressions/00095": _DATE,
    "expressions/00112": _DATE,
    "expressions/00115": _FILTER,
    "expressions/00191": _FILTER,
    "expressions/00193": _FILTER,
    "expressions/00226": _FILTER,
    "expressions/00249": _FILTER,
    "expressions/00258": _FILTER,
    "filters/00010": _MOD,
    "filters/00021": _MOD,
    "filters/00080": _MOD,
    "full-document/drop-missing-updateLookup": _DROP,
    "full-document/insert-dollar-field-updateLookup": _DOLLAR,
    "oplog/list": _ENVIRONMENT,
    "random-streams/00024": _ORDER,
    "random-streams/00086": _ORDER,
    "random-streams/00228": _CLOSED,
    "resume/start-at-zero": _ENVIRONMENT,
    "stages/match-near": _NEAR,
    "updates/00192": _FILTER,
    "updates/00568": _FILTER,
}
