"""The command line of `headrace tail`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.arguments import DEFAULT_URI, add_command, add_json, positive, split_words

if TYPE_CHECKING:
    from headrace.cli.tail.following import Follow

_DESCRIPTION: Final = (
    "Follow the changes of a collection, a database or all of them, of Headrace or of a MongoDB replica set, one event "
    "after the other. Show each changed field of an update, with its value before if the collection stores "
    "pre-images. After a lost connection, continue where it was."
)
_EXAMPLES: Final = (
    "headrace tail shop.orders",
    "headrace tail mongodb://db.example:27017 shop --from 10m",
    """headrace tail shop.orders --filter '{"operationType": "insert"}' --fields item,qty""",
    "headrace tail shop --state shop.json --json --exec ./publish",
)


def add_parser(commands: Any) -> None:
    """Add the subcommand `tail`."""
    parser = add_command(commands, "tail", _run, "follow changes as they happen", _DESCRIPTION, _EXAMPLES)
    parser.add_argument(
        "words", metavar="[URI] [DB[.COLLECTION]]", nargs="*",
        help=f"the server (default: {DEFAULT_URI}), and what to follow (default: all databases)",
    )  # fmt: skip
    parser.add_argument(
        "--from", dest="start", metavar="POSITION",
        help="where to begin: a resume token, a time such as 2026-11-22T10:00:00Z, an age such as 10m, 2h or 1d, "
        "or `earliest`, the oldest entry of the oplog (default: now)",
    )  # fmt: skip
    parser.add_argument("--state", metavar="FILE", type=Path, help="keep the position in a file, and continue from it")
    parser.add_argument(
        "--filter", metavar="JSON", help='a query on the event, such as \'{"operationType": "update"}\''
    )
    parser.add_argument("--fields", metavar="A,B.C", help="the fields of documents that are shown (default: all)")
    parser.add_argument(
        "--fullDocument", choices=["updateLookup", "whenAvailable", "required"],
        help="also show the whole document after an update",
    )  # fmt: skip
    parser.add_argument(
        "--showExpandedEvents", action="store_true", help="also events such as createIndexes and modify"
    )
    parser.add_argument("--count", metavar="N", type=positive, help="exit after N events")
    add_json(parser, "print each event as a line of Extended JSON")
    parser.add_argument(
        "--exec", dest="program", metavar="COMMAND",
        help="run a command of the shell for each event, which gets the event as JSON on its standard input; where it "
        "fails, tail ends, and the event is not done",
    )  # fmt: skip


def _run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Follow until a signal, until the output is closed, or until `--count` events are handled."""
    follow = follow_of(arguments)
    from headrace.cli.arguments import terminated_by_signals
    from headrace.cli.connection import connected
    from headrace.cli.tail.following import EventHandler

    handler = EventHandler(
        follow, as_json=arguments.json, program=arguments.program, fields=fields_of(arguments.fields)
    )
    with terminated_by_signals(), connected(follow.uri) as client:
        return handler.run(client, arguments.count)


def fields_of(text: str | None) -> list[tuple[str, ...]]:
    """Return the paths in `--fields`; an empty list stands for all fields."""
    return [tuple(field.strip().split(".")) for field in text.split(",") if field.strip()] if text else []


def follow_of(arguments: argparse.Namespace) -> Follow:
    """Return the stream to follow and its start. Raises Failed for words that are not valid."""
    from headrace.cli.connection import split_namespace
    from headrace.cli.tail.following import Follow, StateFile
    from headrace.cli.tail.start import json_object, start_of

    uri, given = split_words(arguments.words, 1)
    namespace = given[0] if given else ""
    database, collection = split_namespace(namespace)
    pipeline = [{"$match": json_object(arguments.filter, "--filter")}] if arguments.filter else []
    state = None if arguments.state is None else StateFile(arguments.state, namespace)
    resume = None if state is None else state.read()
    if resume is not None and arguments.start:
        print(f"headrace: --from is not used: {arguments.state} has a position", file=sys.stderr)
    return Follow(
        uri=uri,
        database=database,
        collection=collection,
        pipeline=pipeline,
        start={"startAfter": resume} if resume is not None else start_of(arguments.start),
        full_document=arguments.fullDocument,
        show_expanded_events=arguments.showExpandedEvents,
        state=state,
    )
