"""`headrace check DIR`: print the problems of a data directory, one a line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace import limits
from headrace.cli.arguments import EXIT_FAILED, Failed, add_command, add_json
from headrace.cli.serve import EXIT_DIRECTORY_IN_USE
from headrace.errors import reason_of

if TYPE_CHECKING:
    from headrace.store.check.directory import Report


def add_parser(commands: Any) -> None:
    """Add the subcommand `check`."""
    parser = add_command(
        commands, "check", _run, "check a data directory that no server has open",
        "Check a data directory that no server has open: its pages, checksums, and documents, indexes, "
        "oplog entries and pre-images against each other. Nothing is changed. The status is 1 if a problem is found.",
        ("headrace check data", "headrace check /var/lib/headrace --json"),
    )  # fmt: skip
    parser.add_argument("path", metavar="DIR", type=Path, help="the data directory")
    add_json(parser)


def _run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Print the problems and a summary; return 0 for no problem, 1 for any, 100 if a server has the directory open."""
    from headrace.cli.progress import progress
    from headrace.store.check.directory import check
    from headrace.store.data_file import UnusableDirectory
    from headrace.store.lmdb import DirectoryInUse

    try:
        with progress("pages", None, "") as bar:

            def advance(what: str, done: int, total: int) -> None:
                if bar.is_shown:
                    bar.name(what)
                    bar.set(done, total)

            report = check(arguments.path, advance)
    except DirectoryInUse as error:
        raise Failed(str(error), EXIT_DIRECTORY_IN_USE) from None
    except (OSError, UnusableDirectory) as error:
        raise Failed(reason_of(error)) from None
    problems = report.problems[: limits.CHECK_PROBLEM_COUNT_MAX]
    if arguments.json:
        counts = {"problemCount": len(report.problems), "collections": report.collections, "rows": report.rows}
        print(json.dumps({"path": str(arguments.path), **counts, "problems": problems}))
    else:
        print("".join(f"{problem}\n" for problem in problems) + f"{arguments.path}: {_summary(report)}")
    return EXIT_FAILED if report.problems else 0


def _summary(report: Report) -> str:
    if not report.rows:
        return f"damaged pages, {len(report.problems)} problems; restore the directory from a copy"
    count = len(report.problems)
    counted = (
        f"documents {report.rows.get('documents', 0)}, collections and views {report.collections}, "
        f"oplog entries {report.rows.get('oplog', 0)}, pre-images {report.rows.get('images', 0)}"
    )
    checksums = "" if report.has_checksums else "; format 1, without checksums"
    return f"{'no problems' if not count else '1 problem' if count == 1 else f'{count} problems'}; {counted}{checksums}"
