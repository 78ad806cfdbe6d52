"""The command line of `headrace token`: decode, compare, from-time."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from headrace.cli.arguments import Failed, add_command, add_json


def add_parser(commands: Any) -> None:
    """Add the subcommand `token` and its actions."""
    parser = commands.add_parser("token", help="inspect and make resume tokens", allow_abbrev=False)
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION", parser_class=type(parser))
    word = "a token's _data, or the token document as JSON"
    compare = add_command(
        actions, "compare", _compare, "show which of two resume tokens comes first",
        "Show whether the first token comes before, after or at the second, in the order of streams.",
        ("headrace token compare 826B02C4C3000000012B0429296E1404 826B02C4C4000000012B0429296E1404",),
    )  # fmt: skip
    compare.add_argument("first", metavar="TOKEN", help=word)
    compare.add_argument("second", metavar="TOKEN", help=word)
    add_json(compare)
    decode = add_command(
        actions, "decode", _decode, "print the fields of a resume token as JSON",
        examples=("headrace token decode 826B02C4C3000000012B0429296E1404",),
    )  # fmt: skip
    decode.add_argument("token", metavar="TOKEN", help=word)
    from_time = add_command(
        actions, "from-time", _from_time, "print the resume token of a time",
        "Print a resume token for drivers' resumeAfter. The stream begins with the first event at or after the time.",
        ("headrace token from-time 2026-11-22T10:00:00Z", "headrace token from-time 2h"),
    )  # fmt: skip
    from_time.add_argument("time", metavar="TIME", help="such as 2026-11-22T10:00:00Z, or an age: 10m, 2h, 1d")


def _compare(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    from headrace.cli.token import parsed_token
    from headrace.values import position

    (text, first), (other_text, second) = (_parsed(word, parsed_token) for word in (arguments.first, arguments.second))
    order = (text > other_text) - (text < other_text)
    secs = position.seconds(second.cluster_time) - position.seconds(first.cluster_time)
    name = {-1: "before", 0: "equal", 1: "after"}[order]
    if arguments.json:
        print(json.dumps({"first": name, "secondsBetween": abs(secs)}))
    elif not order:
        print("equal")
    else:
        print(f"the first is {name} the second, {'at the same second' if not secs else f'by {abs(secs)} s'}")
    return 0


def _decode(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    from headrace.cli.token import describe_token

    print(_parsed(arguments.token, describe_token))
    return 0


def _from_time(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    from headrace.cli.tail.start import seconds_of
    from headrace.values.position import position
    from headrace.values.token import high_water_mark

    print(json.dumps({"_data": high_water_mark(position(seconds_of(arguments.time), 0))}))
    return 0


def _parsed(word: str, parse: Any) -> Any:
    from headrace.errors import CommandError

    try:
        return parse(word)
    except CommandError as error:
        raise Failed(f"not a resume token: {error.message}") from None
