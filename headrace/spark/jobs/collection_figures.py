"""What a run of a job has done with each of several collections: rows, the rest, dead letters, the time of writing."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.spark.sinks.contract import BatchReport


@dataclass(slots=True)
class CollectionFigures:
    """Of one collection, by all sinks together; `batch_seconds` is what its tables took in its last batch."""

    rows_total: int = 0
    rest_values_total: int = 0
    dead_letters_total: int = 0
    batches_total: int = 0
    batch: int = -1
    batch_seconds: float = 0.0

    def committed(self, report: BatchReport, seconds: float) -> None:
        """Counts what a sink has committed to the collection's table, which took so many seconds."""
        if report.batch != self.batch:
            self.batch, self.batch_seconds = report.batch, 0.0
            self.batches_total += 1
        self.batch_seconds = round(self.batch_seconds + seconds, 6)
        self.rows_total += report.row_count
        self.rest_values_total += report.rest_count
        self.dead_letters_total += report.dead_letter_count


COLLECTION_METRICS = (
    ("batch_seconds", "gauge", "Time that the tables of a collection took in its last micro-batch."),
    ("dead_letters_total", "counter", "Rows of a collection that sinks have refused."),
    ("rest_values_total", "counter", "Values of a collection that typed tables have in `_rest`."),
    ("rows_total", "counter", "Rows of a collection, by sinks."),
)
"""Name, type, meaning: what Prometheus gets, with the label `collection`."""
