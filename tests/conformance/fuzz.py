"""A mutation fuzz of recorded commands: every answer is a result or one of MongoDB's errors, never an exception inside.

    python -m tests.conformance.fuzz --seconds 3600 --seed 7

Each round takes a recorded command, changes one to three things in it (a value, a name, a field too many or too few, a
piece of another command) and runs it on a server that is driven without a socket, so that what would be error code 1
is a traceback. The recordings are found as `test_recorded.py` finds them; without
them the seeds in `EXTRA_SEEDS` stand in.
"""

from __future__ import annotations

import argparse
import collections
import copy
import datetime
import gzip
import math
import random
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, json_util
from bson.json_util import JSONMode, JSONOptions

from headrace.testing.driven import DrivenServer
from tests.conformance.fuzz_seeds import MORE_SEEDS

COMMAND_SECONDS_MAX: Final = 5
ROUNDS_PER_SERVER: Final = 2000
_OPTIONS: Final = JSONOptions(json_mode=JSONMode.CANONICAL, tz_aware=True)


def _nested(depth: int, name: str = "a", *, array: bool = False) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if array else {name: value}
    return value


ODD_VALUES: Final[list[Any]] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    100,
    2**31 - 1,
    -(2**31),
    Int64(2**63 - 1),
    Int64(-(2**63)),
    Int64(1),
    1.5,
    0.0,
    -0.0,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
    Decimal128("NaN"),
    Decimal128("Infinity"),
    Decimal128("1E+6144"),
    Decimal128("0.5"),
    "",
    "a",
    "$a",
    "$$a",
    "a.b",
    ".",
    "a..b",
    "$",
    "\u00e9\U0001f600",
    "x" * 300,
    "c",
    "hr",
    "admin",
    "$$ROOT",
    "$$REMOVE",
    "{",
    "(",
    [],
    {},
    [[]],
    [{}],
    {"a": 1},
    {"$a": 1},
    {"a.b": 1},
    {"": 1},
    [1, "a", None],
    {"$eq": 1},
    {"$expr": 1},
    {"$literal": 1},
    ObjectId("64b000000000000000000001"),
    Binary(b""),
    Binary(b"\0" * 16, 4),
    Binary(b"x", 3),
    Regex("a(", ""),
    Regex("a", "iz"),
    datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    Timestamp(0, 0),
    Timestamp(2**32 - 1, 2**32 - 1),
    MinKey(),
    MaxKey(),
    Code("x"),
    Code("x", {"a": 1}),
    DBRef("c", 1),
    _nested(100),
    _nested(178),
    _nested(170, "$and", array=False),
    _nested(170, array=True),
]
ODD_FIELDS: Final[list[tuple[str, Any]]] = [
    ("lsid", None),
    ("lsid", {"id": Binary(b"\1" * 16, 4)}),
    ("lsid", {"id": 1}),
    ("lsid", {}),
    ("txnNumber", 1.5),
    ("txnNumber", Int64(1)),
    ("autocommit", False),
    ("startTransaction", True),
    ("stmtIds", [1]),
    ("stmtId", "x"),
    ("readConcern", {"level": 1}),
    ("readConcern", {"level": "snapshot"}),
    ("readConcern", {"afterClusterTime": Timestamp(1, 1)}),
    ("writeConcern", {"w": {}}),
    ("writeConcern", 1),
    ("maxTimeMS", -1),
    ("maxTimeMS", 1),
    ("collation", {"locale": "en"}),
    ("collation", {"locale": 1}),
    ("hint", 1),
    ("hint", {"$natural": 1}),
    ("let", {"a": 1}),
    ("comment", _nested(150)),
    ("apiVersion", "1"),
    ("$db", 1),
    ("limit", -5),
    ("skip", 1.5),
    ("batchSize", 0),
    ("cursor", {"batchSize": -1}),
    ("min", {"a": 1}),
    ("showRecordId", 1),
    ("tailable", True),
    ("explain", True),
    ("compression", [{}]),
    ("scale", float("inf")),
    ("op", float("inf")),
    ("ordered", "x"),
    ("projection", {"a": {"$slice": [1, 2, 3]}}),
    ("arrayFilters", [{"x": 1}, {"y": 1}]),
    ("collectionUUID", Binary(b"\1" * 16, 4)),
    ("bypassDocumentValidation", {}),
]
EXTRA_SEEDS: Final[list[tuple[str, dict[str, Any]]]] = [
    (
        "admin",
        {
            "hello": 1,
            "client": {"driver": {"name": "x", "version": "1"}, "os": {"type": "Linux"}},
            "compression": ["zlib"],
        },
    ),
    ("hr", {"collStats": "c", "scale": 1}),
    ("hr", {"dbStats": 1, "scale": 1}),
    ("admin", {"killOp": 1, "op": 1}),
    ("admin", {"aggregate": 1, "pipeline": [{"$currentOp": {}}], "cursor": {}}),
    ("admin", {"getParameter": "*"}),
    ("admin", {"setParameter": 1, "oplogSizeMB": 990}),
    ("admin", {"getLog": "global"}),
    ("admin", {"currentOp": 1}),
    ("admin", {"serverStatus": 1}),
    ("admin", {"replSetGetStatus": 1}),
    ("admin", {"listDatabases": 1, "filter": {"name": "a"}}),
    ("admin", {"getCmdLineOpts": 1}),
    ("admin", {"renameCollection": "hr.c", "to": "hr.d"}),
    ("admin", {"commitTransaction": 1}),
    (
        "admin",
        {"abortTransaction": 1, "lsid": {"id": Binary(b"\1" * 16, 4)}, "txnNumber": Int64(1), "autocommit": False},
    ),
    ("admin", {"endSessions": [{"id": Binary(b"\1" * 16, 4)}]}),
    ("admin", {"killSessions": []}),
    ("hr", {"validate": "c"}),
    ("admin", {"setClusterParameter": {"changeStreamOptions": {"preAndPostImages": {"expireAfterSeconds": 100}}}}),
    (
        "hr",
        {
            "createIndexes": "c",
            "indexes": [{"key": {"a": 1}, "name": "a_1", "unique": True, "partialFilterExpression": {"a": 1}}],
        },
    ),
    ("hr", {"dropIndexes": "c", "index": "a_1"}),
    ("hr", {"listIndexes": "c"}),
    ("hr", {"collMod": "c", "validator": {"a": 1}}),
    ("hr", {"create": "v", "viewOn": "c", "pipeline": [{"$match": {"a": 1}}]}),
    ("hr", {"create": "d", "capped": True, "size": 1000}),
    ("hr", {"explain": {"find": "c", "filter": {"a": 1}}, "verbosity": "executionStats"}),
    ("hr", {"getMore": Int64(1), "collection": "c"}),
    ("hr", {"killCursors": "c", "cursors": [Int64(1)]}),
    ("hr", {"distinct": "c", "key": "a", "query": {"a": 1}}),
    ("hr", {"count": "c", "query": {"a": 1}, "limit": 1, "skip": 1}),
    ("hr", {"find": "c", "filter": {"a": 1}, "sort": {"a": 1}}),
    ("admin", {"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 9}}], "nsInfo": [{"ns": "hr.c"}]}),
    ("hr", {"update": "c", "updates": [{"q": {"_id": 1}, "u": [{"$set": {"b": {"$add": ["$a", 1]}}}], "multi": True}]}),
    ("hr", {"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"a": 1}}, "new": True, "upsert": True}),
    (
        "hr",
        {
            "aggregate": "c",
            "pipeline": [
                {
                    "$setWindowFields": {
                        "partitionBy": "$a",
                        "sortBy": {"b": 1},
                        "output": {"x": {"$sum": "$b", "window": {"documents": [-1, 1]}}},
                    }
                }
            ],
            "cursor": {},
        },
    ),
    (
        "hr",
        {
            "aggregate": "c",
            "pipeline": [{"$changeStream": {"fullDocument": "updateLookup"}}, {"$match": {"a": 1}}],
            "cursor": {},
        },
    ),
    ("hr", {"headraceChanges": "c", "maxEvents": 10}),
    ("hr", {"dropDatabase": 1}),
    ("hr", {"drop": "c"}),
]


def seeds(folder: Path | None) -> list[tuple[str, dict[str, Any]]]:
    """(database, command) of every recorded step, and our own."""
    commands = [*EXTRA_SEEDS, *MORE_SEEDS]
    for path in sorted((folder / "recordings").glob("*.jsonl.gz")) if folder is not None else ():
        with gzip.open(path, "rt") as lines:
            for line in lines:
                for step in json_util.loads(line, json_options=_OPTIONS)["steps"]:
                    database = step.get("db", "hr")
                    if "run" in step:
                        commands.append((database, step["run"]))
                    elif "watch" in step:
                        stages = [{"$changeStream": step.get("options", {})}, *step.get("pipeline", [])]
                        commands.append(
                            (database, {"aggregate": step.get("coll", "c"), "pipeline": stages, "cursor": {}})
                        )
    return commands


def slots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) below a value."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from slots(value[key])


def mutate(rng: random.Random, command: dict[str, Any], others: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """The command with one to three things changed."""
    command = copy.deepcopy(command)
    for _ in range(rng.randint(1, 3)):
        everywhere = list(slots(command))
        container, key = rng.choice(everywhere)
        match rng.randrange(8):
            case 0 | 1 | 2:
                container[key] = copy.deepcopy(rng.choice(ODD_VALUES))
            case 3 if len(everywhere) > 1:
                del container[key]
            case 4:
                name, value = rng.choice(ODD_FIELDS)
                command[name] = copy.deepcopy(value)
            case 5:
                donor, donor_key = rng.choice(list(slots(rng.choice(others)[1])))
                container[key] = copy.deepcopy(donor[donor_key])
            case 6 if isinstance(container, dict):
                name = rng.choice(
                    ["", "$a", "a.b", "$and", "$expr", "x" * 300, "a..b", "$where", "_id", "$set", "a\u0301", "0"]
                )
                container[name] = container.pop(key)
            case _:
                container[key] = rng.choice(
                    [[container[key]], {"a": container[key]}, {"$not": container[key]}, [container[key]] * 2]
                )
        if not command:
            command = {"ping": 1}
    return command


_PYTHON: Final = re.compile(
    r"\b(True|False|None|DatetimeMS|Decimal128|Int64|Binary)\b|Regex\(|[{\[]'[^']*'[:,\]]|<class|<headrace|[ \[(]b'"
)
"""Forms of Python's values, which no message of MongoDB's has."""


def messages_of(reply: Any) -> list[str]:
    """Return the error messages of a reply, also those of a write's statements."""
    if not isinstance(reply, dict):
        return []
    errors = [reply, *reply.get("writeErrors", ())]
    return [error["errmsg"] for error in errors if isinstance(error, dict) and "errmsg" in error]


class TooSlow(Exception):
    """A command has used more CPU than `COMMAND_SECONDS_MAX`."""


def _alarm(number: int, frame: FrameType | None) -> None:
    raise TooSlow


class Fuzz:
    """Rounds of mutated commands, and what went wrong in them."""

    def __init__(self, seed: int, folder: Path | None) -> None:
        self.rng = random.Random(seed)
        self.seeds = seeds(folder)
        self.rounds = 0
        self.errors: collections.Counter[int] = collections.Counter()
        """Error codes by how often they were answered; 0: an ok."""
        self.failures: dict[str, tuple[str, dict[str, Any], str]] = {}
        """(database, command, traceback) by where the exception came from: one of each."""
        self.slow: list[tuple[str, dict[str, Any]]] = []

    def run(self, rounds: float = math.inf, seconds: float = math.inf) -> None:
        """Mutate and run for `rounds` or `seconds`; on the main thread, since a signal ends a slow command."""
        until = time.monotonic() + seconds
        signal.signal(signal.SIGVTALRM, _alarm)
        while self.rounds < rounds and time.monotonic() < until:
            with DrivenServer(enable_test_commands=False) as server:
                server.run("hr", {"insert": "c", "documents": [{"_id": 1, "a": 1}, {"_id": 2, "a": [1, {"b": 2}]}]})
                for _ in range(ROUNDS_PER_SERVER):
                    if self.rounds >= rounds or time.monotonic() > until or not self._round(server):
                        break

    def problems(self) -> str:
        """Each kind of failure with its command and traceback, then the slow commands; empty if there are none."""
        failures = [
            f"== {where}\n{db}: {str(command)[:2000]}\n{trace}" for where, (db, command, trace) in self.failures.items()
        ]
        return "\n".join(failures + [f"== slow\n{db}: {str(command)[:2000]}" for db, command in self.slow])

    def _round(self, server: DrivenServer) -> bool:
        """One command; whether the server may be used on."""
        database, seed = self.rng.choice(self.seeds)
        command = mutate(self.rng, seed, self.seeds)
        self.rounds += 1
        signal.setitimer(signal.ITIMER_VIRTUAL, COMMAND_SECONDS_MAX)
        try:
            server.request(database, command)
        except Exception:  # what cannot be encoded cannot be sent
            return True
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_VIRTUAL, COMMAND_SECONDS_MAX)
        try:
            reply = server.run(database, command)
        except TooSlow:
            self.slow.append((database, command))
            return False
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            frame = next((frame for frame in reversed(frames) if "headrace" in frame.filename), frames[-1])
            where = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
            self.failures.setdefault(where, (database, command, "".join(traceback.format_exception(error)[-12:])))
            return False
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        code = reply.get("code", 0) if isinstance(reply, dict) else 0
        self.errors[code] += 1
        for message in messages_of(reply):
            if found := _PYTHON.search(message):
                key = f"a form of Python's in error {code}: {message[: found.start()]}"[:100]
                self.failures.setdefault(key, (database, command, message))
        if code == 1:
            self.failures.setdefault(str(reply), (database, command, str(reply)))
        return True


def main() -> int:
    """Fuzz from the command line; 1 where something failed."""
    from tests.conformance.test_recorded import FOLDER

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    fuzz = Fuzz(seed, FOLDER)
    fuzz.run(seconds=arguments.seconds)
    print(fuzz.problems())
    print(f"seed {seed}: {fuzz.rounds} commands, {len(fuzz.failures)} kinds of failure, {len(fuzz.slow)} slow")
    print(f"answers by code: {dict(fuzz.errors.most_common())}")
    return 1 if fuzz.failures else 0


if __name__ == "__main__":
    sys.exit(main())
