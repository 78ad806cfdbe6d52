"""Runs recorded aggregations in this process: `insert` fills a dict of lists, `aggregate` runs the stages."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.json_util import CANONICAL_JSON_OPTIONS, JSONMode, JSONOptions, dumps, loads

from headrace.errors import CommandError
from headrace.query.pipeline import PipelineContext, parse_pipeline, run_pipeline
from headrace.values.bson import decode, encode
from tests.recordings import RECORDINGS

OPTIONS = JSONOptions(json_mode=JSONMode.CANONICAL, tz_aware=True, uuid_representation=0)
_WIDE = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_AUTO, tz_aware=True)


def recorded(family: str) -> Iterator[dict[str, Any]]:
    """The cases of a family, or none where there are no recordings."""
    path = RECORDINGS / f"{family}.jsonl.gz"
    if path.exists():
        with gzip.open(path, "rt") as lines:
            for line in lines:
                yield json.loads(line)


def values(extended: Any) -> dict[str, Any]:
    """A command as Headrace sees it: Extended JSON to BSON to our values."""
    return decode(bson.encode(loads(json.dumps(extended), json_options=OPTIONS)))


def spelled(value: Any) -> Any:
    """Our values as canonical Extended JSON."""
    return json.loads(dumps(bson.decode(encode({"v": value}), _WIDE), json_options=CANONICAL_JSON_OPTIONS))["v"]


class Collections:
    """The few commands that the recordings of aggregations use."""

    def __init__(self) -> None:
        self.collections: dict[str, list[dict[str, Any]]] = {}

    def run(self, command: dict[str, Any]) -> dict[str, Any]:
        """The reply, as far as the recordings keep it."""
        if "insert" in command:
            self.collections.setdefault(command["insert"], []).extend(command["documents"])
            return {"n": len(command["documents"]), "ok": 1.0}
        try:
            result = self._aggregate(command["aggregate"], command["pipeline"])
        except CommandError as error:
            return {"error": {"code": error.code, "codeName": error.code_name}}
        batch = {"firstBatch": result, "id": 0, "ns": f"hr.{command['aggregate']}"}
        return {"cursor": batch, "ok": 1.0}

    def _aggregate(self, collection: str, pipeline: list[Any]) -> list[dict[str, Any]]:
        context = PipelineContext(database="hr", collection=collection, read_collection=self._read)
        return list(run_pipeline(parse_pipeline(pipeline, context=context), self._read(None, collection)))

    def _read(self, database: str | None, collection: str, depth: int = 0) -> list[dict[str, Any]]:
        return self.collections.get(collection, [])


def differences(case: dict[str, Any]) -> Iterator[str]:
    """What the answers of the case differ in, step by step."""
    server = Collections()
    for number, (step, expected) in enumerate(zip(case["steps"], case["expect"])):
        reply = server.run(values(step["run"]))
        if expected == {"#later": True}:
            continue
        wanted, got = essence(expected), essence(spelled(reply))
        if json.dumps(wanted) != json.dumps(got):
            yield f"{case['id']} step {number}: {json.dumps(step['run'])[:600]}\n  expected {wanted}\n  got      {got}"


def essence(reply: dict[str, Any]) -> Any:
    """What of a reply is compared: the batch, or the code."""
    if "error" in reply:
        return reply["error"]["code"]
    return reply["cursor"]["firstBatch"] if "cursor" in reply else None
