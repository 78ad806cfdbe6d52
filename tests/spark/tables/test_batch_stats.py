"""The statistics of a batch give the same progress as the sieve, which looks at each row."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headrace.spark.rows.events import SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END, Row
from headrace.spark.sinks.contract import MicroBatch
from headrace.spark.tables.progress import Progress, Sieve
from headrace.spark.tables.staged_files import batch_stats, merged_stats, progress_after, without_seen_events
from tests.spark.support.generated_changes import BEGAN, generated_changes, table_of, token_at

KINDS = ("insert", "update", "drop", None, SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END)


def agrees(rows: list[Row], before: Progress) -> bool:
    """Whether the statistics decided; if so, asserts that they agree with the sieve."""
    table = without_seen_events(table_of(rows), before.token)
    slices = [batch_stats(table.slice(start, 2)) for start in range(0, table.num_rows, 2)]
    sieve = Sieve(before)
    new = [row for row in MicroBatch("q", 0, table_of(rows)).rows() if sieve.is_new(row)]
    for stats in (batch_stats(table), merged_stats(slices)):
        behind = progress_after(before, stats)
        if behind is not None:
            assert (behind, stats.event_count, stats.row_count) == (sieve.progress, sieve.event_count, len(new))
    return progress_after(before, batch_stats(table)) is not None


@pytest.mark.process
@pytest.mark.parametrize("seed", range(20))
def test_batch_stats_agree_with_the_sieve_or_are_undecided(seed: int) -> None:
    choose = random.Random(seed)
    said = 0
    for _ in range(300):
        few = choose.sample(KINDS, choose.choice([1, 2, len(KINDS)]))
        kinds = [choose.choice(few) for _ in range(choose.randrange(1, 7))]
        rows = [Row(token_at(choose.randrange(1, 40)), BEGAN, 1, kind, "db", "c", documentKey="{}") for kind in kinds]
        begun = token_at(choose.randrange(12)) if choose.random() < 0.5 else ""
        ended = choose.choice(["", token_at(12)]) if begun else ""
        again = begun if begun and choose.random() < 0.2 else ""
        token = max(begun, token_at(choose.randrange(20)) if choose.random() < 0.7 else "")
        said += agrees(rows, Progress(token, begun, ended, again))
    assert said > 60


def test_batches_without_repeats_never_need_the_sieve() -> None:
    progress = Progress()
    for rows in generated_changes(2).row_batches:
        assert agrees(rows, progress)
        behind = progress_after(progress, batch_stats(table_of(rows)))
        assert behind is not None
        progress = behind


def test_merged_stats_have_the_first_row_that_ends_a_collection() -> None:
    rows = [Row(token_at(number), BEGAN, 1, kind, "db", "c") for number, kind in ((3, "rename"), (2, "drop"))]
    invalidated = merged_stats([batch_stats(table_of([row])) for row in rows]).invalidated
    assert invalidated is not None and invalidated.description == f"drop of db.c at {token_at(2)}"
    assert merged_stats([batch_stats(table_of([rows[0]._replace(operationType="insert")]))]).invalidated is None


def test_slices_with_overlapping_ranges_may_repeat_tokens() -> None:
    rows = [Row(token_at(number), BEGAN, 1, "insert") for number in range(1, 5)]
    odd, even = batch_stats(table_of(rows[::2])), batch_stats(table_of(rows[1::2]))
    assert not merged_stats([odd, even]).distinct
    assert progress_after(Progress(), merged_stats([odd, even])) is None
    assert progress_after(Progress(), replace(merged_stats([odd, even]), distinct=True)) == Progress(token_at(4))
    assert merged_stats([batch_stats(table_of(rows[:2])), batch_stats(table_of(rows[2:]))]).distinct
