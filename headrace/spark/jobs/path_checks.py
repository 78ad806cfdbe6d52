"""Checks that a job's paths are apart: no two are equal, and none is inside another that `reset` removes or a sink
writes.

Paths are compared as the file system does: links and `..` are resolved, and case is ignored if the file system ignores
it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from headrace.spark.sinks.file_values import Place
from headrace.spark.sinks.sink_options import SinkError
from headrace.spark.sinks.table_paths import has_placeholders, overlap
from headrace.spark.tables.table_location import is_url

if TYPE_CHECKING:
    from headrace.spark.jobs.job_file import Job


_SAME_SCHEMES: Final = {"abfs": "az", "abfss": "az", "azure": "az", "s3a": "s3"}
"""URL schemes by which a store's client finds the same folders, by one name for all of them."""
_SQLITE: Final = re.compile(r"sqlite(?:\+\w+)?:///([^?]+)")


class JobPath(NamedTuple):
    """A path or URL of a job file, and its key. `only_read`: the job does not write it, or a server does."""

    key: str
    place: Place
    path: str
    only_read: bool = False


def check_paths(job: Job, folder: Path, file: Path | None = None) -> None:
    """Raise SinkError if two paths of the job are not apart, or if one contains the `folder` of its file.

    `file` is the job's file: no other path may be that.
    """
    named_paths = [*_paths(job), *([JobPath("the job's file", (), str(file), only_read=True)] if file else [])]
    paths = [named._replace(path=_compared(named.path)) for named in named_paths]
    home = _compared(str(folder))
    for named in paths:
        if not named.only_read and f"{home}/".startswith(f"{named.path}/"):
            problem = f"{named.key} is the folder of the job's file, or has it inside: give it one of its own"
            raise SinkError(problem, named.place)
    for one, other in combinations(paths, 2):
        if not (one.only_read and other.only_read) and overlap(one.path, other.path):
            problem = f"{one.key} and {other.key} {_how(one.path, other.path)}: give each its own"
            raise SinkError(problem, other.place or one.place)


def _how(one: str, other: str) -> str:
    if one == other:
        return "have one path"
    if has_placeholders(one) or has_placeholders(other):
        return "may have one path, as a collection may have that name (none is written with a '_' in front)"
    return "have paths of which one is inside the other"


def _paths(job: Job) -> Iterator[JobPath]:
    databases = set[str]()
    yield JobPath("checkpoint", ("checkpoint",), str(job.checkpoint))
    if "path" in job.source:
        path = job.source["path"]
        yield JobPath("the data directory, the path of [source],", ("source", "path"), path, only_read=True)
    if job.deadletter:
        yield JobPath("deadletter", ("deadletter",), job.deadletter)
    if "archive" in job.source:
        yield JobPath("archive", ("source", "archive"), job.source["archive"], only_read=True)
    for name, table in job.tables.items():
        if "path" in table:
            key = f"the table {name} of [pipeline]"
            yield JobPath(key, ("pipeline", "tables", name), table["path"], only_read=True)
    for number, sink in enumerate(job.sinks):
        of = f"of the sink {sink.kind}" if len(job.sinks) == 1 else f"of the sink {number + 1}, {sink.kind},"
        place = ("sink", number)
        if sink.location:
            yield JobPath(f"the path {of}", (*place, "path"), sink.location.url)
        for file in sink.schema_files:
            yield JobPath(f"the schema_file {of}", (*place, "schema_file"), file)
        if "position" in sink.options:
            yield JobPath(f"the position {of}", (*place, "position"), str(sink.options["position"]))
        match = _SQLITE.match(str(sink.options.get("uri"))) if sink.kind == "sql" else None
        if match and match[1] not in databases:
            databases.add(match[1])
            yield JobPath("the database of a sink sql", (*place, "uri"), match[1])


def _compared(path: str) -> str:
    """Return the path in a form that is equal for equal places."""
    if is_url(path):
        scheme, _, rest = path.partition("://")
        return f"{_SAME_SCHEMES.get(scheme, scheme)}://{unquote(rest).rstrip('/')}"
    real = os.path.realpath(path)
    return real.casefold() if ignores_case(Path(real)) else real


def ignores_case(path: Path) -> bool:
    """Whether the file system of the path treats names that differ only in case as one name."""
    there = next(each for each in (path, *path.parents) if each.exists())
    for each in (there, *there.parents):
        if each.name.swapcase() != each.name:
            other = each.with_name(each.name.swapcase())
            return other.exists() and other.samefile(each)
    return False
