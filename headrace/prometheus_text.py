"""Prometheus' text format 0.0.4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class PrometheusText:
    """Families of metrics in the order of their addition. Each name begins with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._lines: list[str] = []

    def add(self, name: str, kind: str, meaning: str, samples: Mapping[str, float] | float) -> None:
        """Add a family: a single number, or numbers by their `labels`. An empty family is left out."""
        by_labels = samples if isinstance(samples, Mapping) else {"": samples}
        if by_labels:
            self._head(name, kind, meaning)
            full = self._prefix + name
            self._lines += [
                f"{full}{{{each}}} {value}" if each else f"{full} {value}" for each, value in by_labels.items()
            ]

    def add_histogram(
        self, name: str, meaning: str, bounds: Sequence[float], counts: Sequence[int], total: float
    ) -> None:  # fmt: skip
        """Add a histogram. `bounds`: the ranges' upper ends, without the last range's; `total`: the sum of the
        values."""
        self._head(name, "histogram", meaning)
        sums, full = list(accumulate(counts)), self._prefix + name
        for bound, count in zip((*map(str, bounds), "+Inf"), sums):
            self._lines.append(f'{full}_bucket{{le="{bound}"}} {count}')
        self._lines += [f"{full}_sum {total}", f"{full}_count {sums[-1]}"]

    def _head(self, name: str, kind: str, meaning: str) -> None:
        full = self._prefix + name
        self._lines += [f"# HELP {full} {meaning}", f"# TYPE {full} {kind}"]

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"


def labels(**values: str) -> str:
    """Return labels with their values in the form of a sample."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
