"""The `headrace` command: parses the command line and runs the subcommand.

A subcommand imports its modules when it runs, so that `headrace version` does not import the server.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

import headrace
from headrace.cli import backup, check, compact, doctor, standby, tls, token_command
from headrace.cli.arguments import (
    EXIT_INTERRUPTED,
    EXIT_PIPE_CLOSED,
    CommandParser,
    ExamplesHelp,
    Failed,
    Parser,
    Terminated,
    add_command,
    epilog_of,
)  # fmt: skip
from headrace.cli.configuration import BadConfiguration, expanded
from headrace.cli.console import command as console
from headrace.cli.monitoring import oplog, status, top
from headrace.cli.pipeline import add_actions
from headrace.cli.serve import add_flags, serve
from headrace.cli.tail import command as tail
from headrace.cli.transfer import export_command, import_command
from headrace.cli.user import add_user_actions

_MODULES: Final = (
    tail, oplog, status, top, console, token_command, export_command, import_command, backup, standby, doctor,
)  # fmt: skip
_EXAMPLES: Final = (
    "headrace serve --dbpath data",
    "headrace tail shop.orders --from 1h",
    "headrace status mongodb://db.example:27017",
    "headrace tail --help",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser()
    try:
        arguments = parser.parse_args(expanded(words) if words[:1] == ["serve"] else words)
    except BadConfiguration as error:
        parser.error(str(error))
    try:
        exit_status: int = arguments.run(arguments, words)
        sys.stdout.flush()
    except Failed as failure:
        print(f"headrace: {failure}", file=sys.stderr)
        return failure.status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Terminated as ended:
        return ended.status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit does not fail
        return EXIT_PIPE_CLOSED
    return exit_status


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line; each subcommand sets `run`."""
    parser = Parser(
        prog="headrace",
        description="A MongoDB-compatible document store with complete change streams.",
        epilog=epilog_of(_EXAMPLES),
        formatter_class=ExamplesHelp,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=CommandParser)
    server = add_command(
        commands, "serve", serve, "serve a data directory to MongoDB's drivers",
        "Serve a data directory. The flags are mongod's where they mean the same.",
        (
            "headrace serve --dbpath data --port 27017",
            "headrace serve --dbpath data --fork --logpath headrace.log --pidfilepath headrace.pid",
            "headrace serve --config headrace.yaml --auth --bind_ip_all --tlsMode requireTLS ...",
        ),
    )  # fmt: skip
    add_flags(server)
    pipeline = commands.add_parser("pipeline", help="run a job of the Spark pipeline", allow_abbrev=False)
    add_actions(pipeline)
    check.add_parser(commands)
    compact.add_parser(commands)
    tls.add_parser(commands)
    user = commands.add_parser("user", help="create users in a data directory", allow_abbrev=False)
    add_user_actions(user)
    for module in _MODULES:
        module.add_parser(commands)
    add_command(commands, "version", _print_version, "print the version")
    return parser


class _Version(argparse.Action):
    """argparse's action `version`, but the text is made only when it is needed."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(_version_text())
        parser.exit()


def _print_version(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    print(_version_text())
    return 0


def _version_text() -> str:
    from headrace.dispatch.server_info import MONGODB_VERSION_TEXT

    return f"headrace {headrace.__version__} (speaks like MongoDB {MONGODB_VERSION_TEXT})"


if __name__ == "__main__":
    sys.exit(main())
