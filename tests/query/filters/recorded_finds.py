"""Replays recorded inserts and finds through the pure functions of `headrace.query`, with no server.

Where the recordings are: `tests/recordings.py`.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bson
from bson.json_util import JSONMode, JSONOptions, loads

from headrace.errors import CommandError
from headrace.query.collation import parse_collation
from headrace.query.match import parse_filter
from headrace.query.projection import parse_projection
from headrace.query.sort import parse_sort
from headrace.values.bson import OPTIONS, decode
from tests.recordings import RECORDINGS

JSON = JSONOptions(json_mode=JSONMode.CANONICAL, tz_aware=True, uuid_representation=0)


def recordings() -> Path | None:
    """The folder of the recorded families, or None where there is none."""
    return RECORDINGS if RECORDINGS.is_dir() else None


def cases(folder: Path, family: str) -> Iterator[dict[str, Any]]:
    """The cases of a family, in the types of `headrace.values.bson`."""
    with gzip.open(folder / f"{family}.jsonl.gz", "rt") as lines:
        for line in lines:
            yield decode(bson.encode(loads(line, json_options=JSON), codec_options=OPTIONS))


def find(documents: list[dict[str, Any]], command: dict[str, Any]) -> list[dict[str, Any]]:
    """What a find command gives over these documents."""
    collation = parse_collation(command.get("collation"))
    predicate = parse_filter(command.get("filter", {}), collation=collation)
    projection = parse_projection(command.get("projection", {}), kind="find", predicate=predicate, collation=collation)
    order = parse_sort(command.get("sort", {}), collation)
    return [projection(document) for document in order.sorted(filter(predicate, documents))]


def differences(case: dict[str, Any]) -> list[str]:
    """What a case's finds give otherwise than recorded."""
    documents: list[dict[str, Any]] = []
    result = []
    for step, expected in zip(case["steps"], case["expect"]):
        command = step["run"]
        if "insert" in command:
            documents += command["documents"]
            continue
        if expected == {"#later": True}:
            continue  # the recorded release could not answer this yet
        try:
            answer: Any = {"cursor": find(documents, command)}
        except CommandError as error:
            answer = {"error": error.code}
        if "error" in expected:
            wanted: Any = {"error": expected["error"]["code"]}
        else:
            wanted = {"cursor": expected["cursor"]["firstBatch"]}
        if bson.encode(answer) != bson.encode(wanted):
            result.append(f"{case['id']}: {command}\n  got      {answer}\n  expected {wanted}")
    return result
