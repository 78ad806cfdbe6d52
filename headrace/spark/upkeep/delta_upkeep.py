"""Upkeep of one table. In Delta: rows past their time, small files, files of old versions, the log, its statistics.

Rule: each step is one commit, or removes only files that no reader of recent versions needs, so the process may end
anywhere. Each commit repeats the position of the commit before it, so the table's sink continues after it as if nothing
had happened. The table's one writer runs the upkeep, between two batches.

Why the log is cut by the number of its commits: each commit, and each look at the table, lists the log's folder. At a
batch per second the folder would get 86,400 files a day, and listing them a second of CPU for each batch.

In one of Spark's catalogs: Delta's or Iceberg's own statement joins small files. Such a commit has no position of this
program; the position is found in the commits before it (`tables/catalog/catalog_table.py`). Removing old versions is
left to the table's owner, who knows the readers: it may also remove the commit with the position.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import CommitProperties, DeltaTable

from headrace import limits
from headrace.clock import SystemClock
from headrace.spark.tables.catalog.catalog_table import CatalogTable
from headrace.spark.tables.delta_files import OpenDeltaTable, join_files, newest_commit
from headrace.spark.tables.progress import STATE_KEY, NotAMirror, Progress, TablePosition
from headrace.spark.tables.table_location import TableLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_STATISTICS: Final = {
    "changes": ("token", "clusterTime"),
    "documents": ("token", "clusterTime", "window"),
    "history": ("_id", "token", "until", "since", "ended", "server"),
    "mirror": ("_id", "token", "server"),
}
"""The columns whose statistics let readers skip files. By default each commit has bounds of all columns, even of
documents."""
_STATISTICS_KEY: Final = "delta.dataSkippingStatsColumns"
_TOMBSTONES_KEY: Final = "delta.deletedFileRetentionDuration"
_HOUR: Final = 3600
_DAY: Final = 86_400


@dataclass(slots=True)
class UpkeepReport:
    """The work done on a table."""

    table: str
    removed_rows: int = 0
    compacted_files: int = 0
    vacuumed_files: int = 0
    log_files: int = 0
    skipped_bytes: int = 0
    """The bytes of small files that are too many to join between two batches."""
    ms: int = 0

    @property
    def did_something(self) -> bool:
        """Whether any work was done, or files were skipped."""
        return any(getattr(self, each.name) for each in fields(self) if each.name not in {"ms", "table"})

    def __str__(self) -> str:
        said = (
            (self.removed_rows, "old rows deleted"),
            (self.compacted_files, "small files joined"),
            (self.vacuumed_files, "old files removed"),
            (self.log_files, "files of the log removed"),
        )
        done = [f"{count} {what}" for count, what in said if count]
        if self.skipped_bytes:
            done.append(f"{self.skipped_bytes >> 20} MiB of small files left: run `headrace pipeline upkeep`")
        return f"upkeep of {self.table}: {', '.join(done) or 'nothing to do'} ({self.ms / 1000:.1f} s)"


class DeltaUpkeep:
    """The upkeep of the table that a sink of this kind has at the location; it need not exist yet.

    Joined rows are sorted by the columns `cluster`, unless that takes too long between two batches.
    """

    def __init__(self, location: TableLocation, kind: str, options: UpkeepOptions, cluster: Sequence[str] = ()) -> None:
        self.location, self.options = location, options
        self._kind, self._cluster = kind, cluster
        self._open_table = OpenDeltaTable(location)
        self._ran = False

    def run(
        self, *, stop: Callable[[], bool] = lambda: False, thorough: bool = False, now_ms: int | None = None
    ) -> UpkeepReport:
        """Do the upkeep that is due, step by step until `stop`; with `thorough`, however long a step takes.

        Raise NotAMirror for a table that this program did not make.
        """
        clock = SystemClock()
        begun = clock.monotonic_ms()
        now = clock.now_ms() if now_ms is None else now_ms
        report = UpkeepReport(str(self._open_table.location))
        for step in self._steps(report, now // 1000, thorough):
            if stop():
                break
            step()
        report.ms = round(clock.monotonic_ms() - begun)
        return report

    def _steps(self, report: UpkeepReport, now_s: int, thorough: bool) -> Iterator[Callable[[], None]]:
        if self._open_table.now() is None:
            return
        yield self._set_properties
        if self.options.keep_seconds is not None:
            yield lambda: self._remove_rows(report, now_s)
        yield lambda: self._compact(report, thorough)
        yield lambda: self._vacuum(report, thorough)
        yield lambda: self._cut_log(report, now_s)

    def _table(self) -> DeltaTable:
        table = self._open_table.now()
        assert table is not None
        return table

    def _set_properties(self) -> None:
        table = self._table()
        there = table.metadata().configuration
        # A removed file must stay listed for longer than it is retained; otherwise it would never be deleted.
        seconds = self.options.retain_seconds + 2 * self.options.every_seconds + _DAY
        wanted = {_TOMBSTONES_KEY: f"interval {seconds} seconds"}
        names = {field.name for field in table.schema().fields}
        # Typed columns keep all statistics, because users filter by them.
        if _STATISTICS_KEY not in there and names & {"document", "fullDocument"}:
            wanted[_STATISTICS_KEY] = ",".join(name for name in _STATISTICS[self._kind] if name in names)
        if any(there.get(name) != value for name, value in wanted.items()):
            table.alter.set_table_properties(wanted, commit_properties=_carried(table))

    def _remove_rows(self, report: UpkeepReport, now_s: int) -> None:
        """Delete rows older than `keep`, once some are older by another tenth of `keep`, or by a day."""
        keep = self.options.keep_seconds
        assert keep is not None
        table = self._table()
        column, condition = _time_column(table, self._kind)
        cut, due = _token_of(now_s - keep), _token_of(now_s - keep - min(keep // 10, _DAY))
        if not any(bound < due for bound in _least(table, column)):
            return
        predicate = f"{condition}{column} < '{cut}'"
        metrics = table.delete(predicate, commit_properties=_carried(table, removed=cut))
        report.removed_rows = int(metrics.get("num_deleted_rows") or 0)

    def _compact(self, report: UpkeepReport, thorough: bool) -> None:
        table = self._table()
        target = self.options.target_bytes
        small: dict[str, list[int]] = {}
        for action in _actions(table):
            # A file of three quarters of the target size counts as large enough.
            if action["size_bytes"] < target * 3 // 4:
                small.setdefault(str(action.get("partition")), []).append(action["size_bytes"])
        count = sum(len(sizes) for sizes in small.values() if len(sizes) > 1)
        if count < limits.UPKEEP_SMALL_FILE_COUNT and not (thorough and count):
            return
        size = sum(map(sum, small.values()))
        if size > limits.UPKEEP_BYTES_MAX and not thorough:
            report.skipped_bytes = size
            return
        sorted_max = math.inf if thorough else limits.UPKEEP_BYTES_MAX
        report.compacted_files = join_files(table, _carried(table), target, self._cluster, sorted_max)

    def _vacuum(self, report: UpkeepReport, thorough: bool) -> None:
        """Remove files of no version younger than `retain`. The first time, also remove files that the log does not
        know.

        Unknown files stay if the folder has other files than this table's, such as a checkpoint or another table.
        """
        table = self._table()
        hours, full = self.options.retain_seconds // _HOUR, thorough or not self._ran
        self._ran = True
        listed = table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=full)
        if full and not all(map(_is_of_table, listed)):
            full, listed = False, table.vacuum(hours, dry_run=True, enforce_retention_duration=False)
        if listed:
            removed = table.vacuum(
                hours, dry_run=False, enforce_retention_duration=False, full=full, commit_properties=_carried(table)
            )
            report.vacuumed_files = len(removed)

    def _cut_log(self, report: UpkeepReport, now_s: int) -> None:
        """Remove the log of versions that are older than `retain`, or before the last `commits`."""
        table, location = self._table(), self._open_table.location
        if table.version() < limits.UPKEEP_COMMIT_COUNT_MIN:
            return
        commit = newest_commit(table)
        assert commit is not None
        oldest = table.version() - self.options.commits
        cut = cut_of(location, oldest, now_s - self.options.retain_seconds)
        if cut is not None and cut <= int(commit["version"]):
            report.log_files = remove_log_before(location, cut)


def _carried(table: DeltaTable, *, removed: str = "") -> CommitProperties:
    """Return the metadata of a sink's newest commit, for the next one; `removed` is the token before which rows go."""
    commit = newest_commit(table)
    if commit is None:
        raise NotAMirror(f"the Delta table {table.table_uri} has no commit of this program")
    metadata = {name: str(value) for name, value in commit.items() if name.partition(".")[0] == STATE_KEY}
    if removed:
        progress = Progress.of(metadata[STATE_KEY])
        metadata[STATE_KEY] = replace(progress, removed=max(progress.removed, removed)).text()
    return CommitProperties(custom_metadata=metadata)


def _time_column(table: DeltaTable, kind: str) -> tuple[str, str]:
    """Return the column whose token shows a row's age, and the condition for rows that may be removed."""
    if kind != "history":
        return "token", ""
    # In a typed history the table's own columns have a prefix.
    prefix = "_" if any(field.name == "_until" for field in table.schema().fields) else ""
    return f"{prefix}until", f"{prefix}current = false and "


def _is_of_table(name: str) -> bool:
    """Whether a file with this name, relative to the table, may be a file of the table, perhaps in a partition."""
    *folders, file = name.split("/")
    return file.endswith(".parquet") and all("=" in folder for folder in folders)


def _token_of(seconds: int) -> str:
    """Return the lower bound of the tokens of events from this time on."""
    return f"82{max(seconds, 0):08X}"


def _actions(table: DeltaTable) -> list[dict[str, Any]]:
    actions: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=False)).to_pylist()
    return actions


def _least(table: DeltaTable, column: str) -> list[str]:
    """Return the smallest values of the column, from the files with such statistics."""
    flat = pa.table(table.get_add_actions(flatten=True))
    name = f"min.{column}"
    return [value for value in flat[name].to_pylist() if value] if name in flat.column_names else []


@dataclass(frozen=True, slots=True)
class UpkeepOptions:
    """See `[sink.upkeep]` (`sinks/sink_model.py`). `keep_seconds` is None if rows stay forever."""

    every_seconds: int = 600
    target_bytes: int = 128_000_000
    retain_seconds: int = 86_400
    commits: int = 2000
    keep_seconds: int | None = None


LOG_FOLDER: Final = "_delta_log"
_VERSION: Final = re.compile(r"(\d{20})\.(.+)")


def cut_of(location: TableLocation, oldest: int, time_s: int) -> int | None:
    """Return the version before which the log can be removed; None if nothing can be.

    It is the last version with a checkpoint that is not after `oldest`, or that was made before `time_s`. Every later
    read begins with that checkpoint.
    """
    checkpoints = {}
    for info in _log(location):
        matched = _VERSION.fullmatch(info.base_name)
        if matched and matched[2] == "checkpoint.parquet":
            checkpoints[int(matched[1])] = info.mtime.timestamp() if info.mtime else float("inf")
    cuts = [version for version, made in checkpoints.items() if version <= oldest or made < time_s]
    return max(cuts, default=None)


def remove_log_before(location: TableLocation, cut: int) -> int:
    """Remove the log of all versions before `cut`, oldest first. Return the number of files."""
    names = sorted(info.base_name for info in _log(location))
    old = [name for name in names if (matched := _VERSION.fullmatch(name)) and int(matched[1]) < cut]
    for name in old:
        location.remove_file(f"{LOG_FOLDER}/{name}")
    return len(old)


def _log(location: TableLocation) -> list[pa_fs.FileInfo]:
    infos: list[pa_fs.FileInfo] = location.files.get_file_info(pa_fs.FileSelector(LOG_FOLDER, allow_not_found=True))
    return infos


class CatalogUpkeep:
    """The upkeep of the table with this name. `location` is also the name, which identifies the table."""

    def __init__(self, name: str, options: UpkeepOptions, get_session: Callable[[], SparkSession]) -> None:
        self.location, self.options = name, options
        self._table = CatalogTable[TablePosition](name, get_session)

    def run(self, *, stop: Callable[[], bool] = lambda: False, thorough: bool = False) -> UpkeepReport:
        """Join small files, in up to one commit; the table need not exist. Raise NotAMirror for a table of no sink."""
        clock = SystemClock()
        begun = clock.monotonic_ms()
        joined = 0
        if not stop() and self._table.exists():
            joined = self._table.join_files(self.options.target_bytes, least=2 if thorough else None)
        return UpkeepReport(self.location, compacted_files=joined, ms=round(clock.monotonic_ms() - begun))
