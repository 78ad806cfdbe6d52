"""`$_internalUnpackBucket`: the measurements in the buckets of a time series.

A time series collection is a view with this single stage. A client may use the stage, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import CommandError
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.timeseries.bucket import measurements_of
from headrace.timeseries.series import Series
from headrace.values.bson import decode, encode_in_order, type_name

_FIELDS: Final = frozenset({"bucketMaxSpanSeconds", "metaField", "timeField"})
_SECONDS_MAX: Final = 31_536_000


@dataclass(frozen=True, slots=True)
class UnpackBucket(Stage):
    """Unpacks the buckets of `series`."""

    name: str
    spec: Any
    series: Series

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """The measurements of decoded buckets."""
        return map(decode, self.apply_raw(map(encode_in_order, documents)))

    def apply_raw(self, buckets: Iterator[bytes]) -> Iterator[bytes]:
        """The raw measurements of raw buckets."""
        for bucket in buckets:
            yield from measurements_of(self.series, bucket)


def parse_unpack_bucket(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{timeField, metaField, bucketMaxSpanSeconds}`. Raises 5346500, 5346506, 5346508, 5346510."""
    if type(spec) is not dict:
        raise CommandError(5346500, f"{name} specification must be an object, got: {type_name(spec)}")
    for field, value in spec.items():
        if field not in _FIELDS:
            raise CommandError(5346506, f"unrecognized parameter to {name}: {field}")
        if field != "bucketMaxSpanSeconds" and type(value) is not str:
            raise CommandError(5346504, f"{field} field must be a string, got: {type_name(value)}")
    if "timeField" not in spec:
        raise CommandError(5346508, f"{name} stage requires a timeField parameter")
    span = spec.get("bucketMaxSpanSeconds")
    if isinstance(span, bool) or not isinstance(span, int) or not 1 <= span <= _SECONDS_MAX:
        raise CommandError(5346510, f"{name} stage requires a bucketMaxSpanSeconds parameter")
    return (UnpackBucket(name, spec, Series.of({**spec, "bucketRoundingSeconds": span})),)
