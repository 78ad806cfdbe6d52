"""The help of every command ends with examples, which are command lines that it takes."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

import pytest

from headrace.cli.main import build_parser


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of the commands without subcommands."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield parser
    for action in below:
        for choice in action.choices.values():
            yield from commands(choice)


EXAMPLES = {
    parser.prog: [line.strip() for line in (parser.epilog or "").splitlines()]
    for parser in (build_parser(), *commands(build_parser()))
}


@pytest.mark.parametrize("command", sorted(EXAMPLES.keys() - {"headrace version"}))
def test_the_help_of_a_command_ends_with_examples_that_it_takes(command: str) -> None:
    title, *lines = EXAMPLES[command]
    assert title == "examples:" and lines
    for line in lines:
        name, *words = shlex.split(line)
        assert name == "headrace" and line.startswith(command)
        end = min((words.index(word) for word in ("|", ">", "...") if word in words), default=len(words))
        if words[-1] == "--help":
            continue
        assert build_parser().parse_args(words[:end]).run is not None
