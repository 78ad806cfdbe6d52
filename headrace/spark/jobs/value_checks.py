"""Whether values of a job's file are of their kind; Spark would say so only after its start, and not in a line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_INTERVAL: Final = re.compile(
    r"(interval\s+)?(\d+(\.\d+)?\s*(microsecond|millisecond|second|minute|hour|day|week)s?(\s+|$))+", re.IGNORECASE
)
_MEMORY: Final = re.compile(r"[1-9]\d*[kmgt]?", re.IGNORECASE)
_PORT_MAX: Final = 65535


class ValueProblem(ValueError):
    """A value is none that its key can have."""


def check_values(given: Mapping[str, Any]) -> None:
    """Raises ValueProblem for a value of the top, or of a table but `[source]`, that is not of its kind."""
    _check(given, "checkpoint", "a path", _is_text)
    _check(given, "deadletter_max", "a whole number", _is_count)
    _check(given, "source", "a table", lambda source: isinstance(source, dict))
    _check(given, "sink", "an array of tables: [[sink]]", _is_tables)
    _check(given.get("pipeline", {}), "tables", "a table of tables", lambda tables: isinstance(tables, dict))
    _check(given, "report_seconds", "a number of seconds above 0", _is_positive)
    metrics, spark, trigger = (given.get(name, {}) for name in ("metrics", "spark", "trigger"))
    _check(metrics, "port", f"a port from 0 to {_PORT_MAX}", lambda port: _is_count(port) and port <= _PORT_MAX)
    _check(spark, "conf", "a table of Spark's properties", lambda conf: isinstance(conf, dict))
    _check(spark, "cores", "a whole number above 0", lambda cores: _is_count(cores) and cores > 0)
    _check(spark, "memory", "a size such as '1g' or '512m'", lambda text: _matches(_MEMORY, text))
    _check(spark, "quick", "true or false", lambda flag: isinstance(flag, bool))
    _check(trigger, "availableNow", "true or false", lambda flag: isinstance(flag, bool))
    _check(trigger, "every", "an interval such as '1 second'", lambda text: _matches(_INTERVAL, text))


def _check(table: Mapping[str, Any], key: str, kind: str, fits: Any) -> None:
    if key in table and not fits(table[key]):
        raise ValueProblem(f"{key!r} is {kind}, not {table[key]!r}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _matches(pattern: re.Pattern[str], text: Any) -> bool:
    return isinstance(text, str) and pattern.fullmatch(text.strip()) is not None
