"""What the commands' parsers share: help with examples, the connection string, exit statuses of clients."""

from __future__ import annotations

import argparse
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

DEFAULT_URI: Final = "mongodb://localhost:27017"
EXIT_FAILED: Final = 1
EXIT_UNREACHABLE: Final = 4
"""The server did not answer, or refused the login."""
EXIT_POSITION_LOST: Final = 5
"""The oplog no longer has the position to go on from."""
EXIT_INTERRUPTED: Final = 130
"""128 and the number of SIGINT, as shells show it."""
EXIT_PIPE_CLOSED: Final = 141
"""128 and the number of SIGPIPE: nobody reads the output any more."""
_URI: Final = re.compile(r"^(mongodb(\+srv)?://|env:|file:)")
_LOGIN: Final = re.compile(r"[^\s'\"]*:[^\s'\"]*@")

Run = Callable[[argparse.Namespace, Sequence[str]], int]


class Failed(Exception):
    """A command has failed: the reason, in a line, and the exit status."""

    def __init__(self, reason: str, status: int = EXIT_FAILED) -> None:
        super().__init__(reason)
        self.status = status


class Terminated(BaseException):
    """A signal ends the command, which clears up as behind Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


@contextmanager
def terminated_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise `Terminated` in the `with`, once: the second one ends the process. A signal that is
    ignored, as SIGHUP is under nohup, stays so. Elsewhere than in the main thread nothing changes."""

    def terminate(number: int, frame: object) -> NoReturn:
        signal.signal(number, signal.SIG_DFL)
        raise Terminated(number)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, terminate)
    try:
        yield
    finally:
        for changed, handler in before.items():
            signal.signal(changed, handler)


def add_command(
    commands: Any, name: str, run: Run, summary: str, description: str = "", examples: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """A subcommand that `run` carries out.

    Args:
        commands: What `add_subparsers` returned.
        name: The subcommand.
        run: Called with the parsed arguments and the words of the command line; returns the exit status.
        summary: A line for the list of commands.
        description: Sentences for its own help; by default the summary.
        examples: Command lines that its help ends with.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description or f"{summary[0].upper()}{summary[1:]}.",
        epilog=epilog_of(examples) if examples else None,
        formatter_class=ExamplesHelp if examples else argparse.HelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    return parser


def epilog_of(examples: Sequence[str]) -> str:
    """What a help with examples ends with; its formatter is `ExamplesHelp`."""
    return "examples:\n" + "".join(f"  {line}\n" for line in examples)


def add_uri(parser: argparse.ArgumentParser) -> None:
    """The server to connect to, as the first argument."""
    parser.add_argument(
        "uri", metavar="URI", nargs="?", default=DEFAULT_URI, type=uri_argument,
        help=f"the server's connection string, or env:NAME or file:PATH for one that is kept there "
        f"(default: {DEFAULT_URI})",
    )  # fmt: skip


def add_json(parser: argparse.ArgumentParser, shown: str = "print one JSON document") -> None:
    """`--json`, for scripts."""
    parser.add_argument("--json", action="store_true", help=f"{shown}, for scripts")


def is_uri(word: str) -> bool:
    """Whether an argument is a connection string or stands for one."""
    return _URI.match(word) is not None


def split_words(words: Sequence[str], count_max: int) -> tuple[str, list[str]]:
    """The connection string that arguments begin with, or the default, and the others. Raises Failed for too many."""
    given = list(words)
    uri = given.pop(0) if given and is_uri(given[0]) else DEFAULT_URI
    if len(given) > count_max:
        raise Failed(f"too many arguments: {without_logins(repr(given[count_max]))}", 2)
    return uri, given


def uri_argument(word: str) -> str:
    """An argument that must be a connection string. Raises ArgumentTypeError."""
    if not is_uri(word):
        raise argparse.ArgumentTypeError(f"{word!r} does not begin with mongodb://, mongodb+srv://, env: or file:")
    return word


def positive(word: str) -> int:
    """An argument that must be a whole number of at least 1. Raises ArgumentTypeError."""
    if not word.isdecimal() or not int(word):
        raise argparse.ArgumentTypeError(f"{word!r} is no whole number of at least 1")
    return int(word)


def without_logins(text: str) -> str:
    """The text without what is before the @ of connection strings in it."""
    return _LOGIN.sub("***@", text)


class Parser(argparse.ArgumentParser):
    """Quotes no password where the command line is wrong."""

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        super().error(without_logins(message))


class CommandParser(Parser):
    """Takes arguments and options in any order, also where an argument may be left out."""

    _is_intermixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, which gives up on `--option value ARGUMENT` where ARGUMENT may be left out."""
        if self._is_intermixing or any(isinstance(action, argparse._SubParsersAction) for action in self._actions):
            return super().parse_known_args(args, namespace)
        self._is_intermixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_intermixing = False


class ExamplesHelp(argparse.HelpFormatter):
    """Wraps the description, and leaves the examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return text
        return super()._fill_text(text, width, indent)
