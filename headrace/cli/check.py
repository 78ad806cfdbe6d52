"""`headrace check DIR`: what is wrong with a data directory, a line each."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace import limits
from headrace.cli.serve import EXIT_DIRECTORY_IN_USE, EXIT_FAILED
from headrace.store.check.directory import Report, check
from headrace.store.checksums.upgrade import IncompatibleFormat
from headrace.store.data_file import UnusableDirectory
from headrace.store.lmdb import DirectoryInUse


def check_directory(path: Path) -> int:
    """Print the problems and a summary; 0 if there are none, 1 if there are, 100 if a server has the directory open."""
    try:
        report = check(path)
    except DirectoryInUse as error:
        return _fail(str(error), EXIT_DIRECTORY_IN_USE)
    except (IncompatibleFormat, OSError, UnusableDirectory) as error:
        return _fail(str(error), EXIT_FAILED)
    for problem in report.problems[: limits.CHECK_PROBLEM_COUNT_MAX]:
        print(problem)
    print(f"{path}: {_summary(report)}")
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


def _fail(reason: str, status: int) -> int:
    print(f"headrace: {reason}", file=sys.stderr)
    return status
