"""The command line of `headrace console`. The server of the page is imported only when the command runs."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from headrace.cli.arguments import Failed, add_command, add_uri, port_argument

WHILE_STDIN: Final = "--whileStdin"
"""The flag with which `headrace serve --console` starts the console: it ends with its standard input."""
MISSING: Final = "the console is not installed: pip install 'headrace[console]'"
_DESCRIPTION: Final = (
    "Serve a page on this machine's loopback address that shows a server, Headrace or MongoDB: changes as they happen, "
    "collections and query plans, open streams, the oplog, load, slow queries, jobs of the pipeline. The page only "
    "reads, unless --write is given. Open the address that the command prints; it holds a secret token."
)


def add_parser(commands: Any) -> None:
    """Add the subcommand `console`."""
    examples = (
        "headrace console",
        "headrace console mongodb://db.example:27017 --port 8027",
        "headrace console file:/run/secrets/mongodb-uri --job orders.toml",
    )
    parser = add_command(commands, "console", _run, "show a server on a page in the browser", _DESCRIPTION, examples)
    add_uri(parser)
    parser.add_argument(
        "--port", metavar="N", type=port_argument, default=0, help="TCP port of the page (default: a free one)"
    )
    parser.add_argument(
        "--job", dest="jobs", metavar="FILE", type=Path, action="append", default=[],
        help="also show the pipeline's job of this file; can be given again",
    )  # fmt: skip
    parser.add_argument(
        "--write", action="store_true", help="let pipelines of the query box end with $out or $merge (default: refused)"
    )
    parser.add_argument(WHILE_STDIN, dest="while_stdin", action="store_true", help=argparse.SUPPRESS)


def _run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Serve the page until a signal. Raises Failed."""
    try:
        from headrace.cli.console.application import ConsoleServer
    except ImportError as error:
        raise Failed(f"{MISSING} ({error})") from None
    server = ConsoleServer(arguments.uri, port=arguments.port, jobs=arguments.jobs, writes=arguments.write)
    print(f"headrace console: {server.address}", flush=True)
    if arguments.while_stdin:
        threading.Thread(target=_stop_after_stdin, args=(server,), daemon=True).start()
    server.run()
    return 0


def _stop_after_stdin(server: Any) -> None:
    sys.stdin.buffer.read()
    server.stop()
