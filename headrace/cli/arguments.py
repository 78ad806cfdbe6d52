"""Parts that all commands' parsers share: help with examples, the connection string, exit statuses of clients."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any, Final, NoReturn

from headrace.keywords import nearest

DEFAULT_URI: Final = "mongodb://localhost:27017"
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 4
"""The server did not answer, or refused the login."""
EXIT_POSITION_LOST: Final = 5
"""The oplog no longer has the position to continue from."""
EXIT_INTERRUPTED: Final = 130
"""128 + SIGINT, as shells show it."""
EXIT_PIPE_CLOSED: Final = 141
"""128 + SIGPIPE: the reader of the output is gone."""
_URI: Final = re.compile(r"^(mongodb(\+srv)?://|env:|file:)")
_ADDRESS: Final = re.compile(
    r"^([^\s/@]*@)?(localhost|[\w-]+(?=:\d{4,5})|\d+(\.\d+){3}|\[[0-9A-Fa-f:]+\]|[\w.-]+(?=:2701[789]))(:\d{2,5})([/,?].*)?$"
)
"""Matches a server's address without a scheme, but not `shop.events:2024`, which is a collection."""
_LOGIN: Final = re.compile(r"[^\s'\"]*:[^\s'\"]*@")

Run = Callable[[argparse.Namespace, Sequence[str]], int]


class Failed(Exception):
    """The failure of a command, with a one-line reason and an exit status."""

    def __init__(self, reason: str, status: int = EXIT_FAILED) -> None:
        super().__init__(reason)
        self.status = status


class Terminated(BaseException):
    """Raised when a signal ends the command, so that it cleans up as after Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


@contextmanager
def terminated_by_signals() -> Iterator[None]:
    """Let the first SIGTERM or SIGHUP inside the `with` raise `Terminated`; a second one ends the process.

    A signal that is ignored, such as SIGHUP under nohup, stays ignored. Outside the main thread this does nothing.
    """

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
    """Add a subcommand that calls `run`, and return its parser.

    Args:
        commands: The object that `add_subparsers` returned.
        name: The subcommand's name.
        run: Called with the parsed arguments and the words of the command line; returns the exit status.
        summary: Its line in the list of commands.
        description: Sentences for its own help; by default the summary.
        examples: Command lines at the end of its help.
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
    """Return the examples at the end of a help text; the parser needs the formatter `ExamplesHelp`."""
    return "examples:\n" + "".join(f"  {line}\n" for line in examples)


def add_uri(parser: argparse.ArgumentParser) -> None:
    """Add the first argument: the connection string of the server."""
    parser.add_argument(
        "uri", metavar="URI", nargs="?", default=DEFAULT_URI, type=uri_argument,
        help=f"the server's connection string, or env:NAME or file:PATH for one that is kept there "
        f"(default: {DEFAULT_URI})",
    )  # fmt: skip


def add_json(parser: argparse.ArgumentParser, shown: str = "print one JSON document") -> None:
    """Add `--json`, for scripts."""
    parser.add_argument("--json", action="store_true", help=f"{shown}, for scripts")


def is_uri(word: str) -> bool:
    """Return whether an argument is a connection string, or an `env:` or `file:` that stands for one."""
    return _URI.match(word) is not None


def split_words(words: Sequence[str], count_max: int) -> tuple[str, list[str]]:
    """Return the leading connection string (or the default) and the other arguments. Raises Failed for too many."""
    given = list(words)
    if given and _ADDRESS.match(given[0]):
        raise Failed(_without_scheme(given[0]), EXIT_USAGE)
    uri = given.pop(0) if given and is_uri(given[0]) else DEFAULT_URI
    if len(given) > count_max:
        raise Failed(f"too many arguments: {without_logins(repr(given[count_max]))}", EXIT_USAGE)
    return uri, given


def uri_argument(word: str) -> str:
    """Check that an argument is a connection string. Raises ArgumentTypeError."""
    if not is_uri(word):
        if _ADDRESS.match(word):
            raise argparse.ArgumentTypeError(_without_scheme(word))
        raise argparse.ArgumentTypeError(f"{word!r} does not begin with mongodb://, mongodb+srv://, env: or file:")
    return word


def _without_scheme(address: str) -> str:
    return f"mongodb:// is missing: mongodb://{without_logins(address)}"


def number_argument(parse: Callable[[str], float], least: float, most: float, meant: str) -> Callable[[str], Any]:
    """Return a parser of numbers from `least` to `most`. Its ArgumentTypeError says what is `meant`."""

    def parsed(word: str) -> float:
        with suppress(OverflowError, ValueError):
            number = parse(word)
            if least <= number <= most:
                return number
        raise argparse.ArgumentTypeError(f"{word!r} is not {meant}")

    return parsed


port_argument = number_argument(int, 0, 65535, "a port number")
positive = number_argument(lambda word: int(word) if word.isdecimal() else 0, 1, inf, "a whole number of at least 1")


def without_logins(text: str) -> str:
    """Return the text with `***` in place of the users and passwords of connection strings."""
    return _LOGIN.sub("***@", text)


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, suggests the nearest word and quotes no password."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with status 2."""
        self.exit(EXIT_USAGE, f"{self.prog}: {without_logins(message)} ({self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Reject unknown flags first, so that the error names the flag and not the argument that is then missing."""
        args = list(sys.argv[1:] if args is None else args)
        for word in args:
            flag = word.partition("=")[0]
            if word == "--" or (not word.startswith("-") and self._has_subcommands):
                break
            if flag.startswith("--") and " " not in word and flag not in self._option_string_actions:
                shown = [name for name, action in self._option_string_actions.items() if name.startswith("--")
                         and action.help is not argparse.SUPPRESS]  # fmt: skip
                self.error(f"there is no {flag}{_suggestion(flag, shown)}")
        return super().parse_known_args(args, namespace)

    @property
    def _has_subcommands(self) -> bool:
        return any(isinstance(action, argparse._SubParsersAction) for action in self._actions)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if isinstance(action, argparse._SubParsersAction):
            kind = str(action.metavar).lower()
            self.error(f"there is no {kind} {value!r}{_suggestion(str(value), action.choices, quoted=True)}")
        raise argparse.ArgumentError(action, f"{value!r} is none of {', '.join(map(str, action.choices))}")


class CommandParser(Parser):
    """A parser that takes arguments and options in any order, even if an argument is optional."""

    _is_intermixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Accept `--option value ARGUMENT` with an optional ARGUMENT, which argparse alone rejects."""
        if self._is_intermixing or self._has_subcommands:
            return super().parse_known_args(args, namespace)
        self._is_intermixing = True
        try:
            parsed, left = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_intermixing = False
        if left:
            word = left[0]
            takes_path = "--dbpath" in self._option_string_actions
            hint = f"; did you mean --dbpath {word}?" if takes_path else ""
            self.error(f"there is no {word}" if word.startswith("-") else f"too many arguments: {word!r}{hint}")
        return parsed, left


def _suggestion(word: str, words: Iterable[str], *, quoted: bool = False) -> str:
    similar = nearest(word, words)
    return "" if similar is None else f"; did you mean {repr(similar) if quoted else similar}?"


class ExamplesHelp(argparse.HelpFormatter):
    """A help formatter that wraps the description but not the examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return text
        return super()._fill_text(text, width, indent)


def data_directory() -> Path:
    """Return `$XDG_DATA_HOME/headrace`, by default `~/.local/share/headrace`.

    On macOS return `~/Library/Application Support/headrace`.
    """
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "headrace"
    base = os.environ.get("XDG_DATA_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share"
    return folder / "headrace"
