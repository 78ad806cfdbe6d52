"""A stream's client stages, arranged so that events which do not match cost little.

The conjuncts of the first `$match` stages are separated, and each is evaluated as soon as its fields are known:

    fixed     operationType, ns                                     once for a collection
    header    also documentKey, clusterTime, wallTime               from the entry's slices
    early     anything but fullDocument, fullDocumentBeforeChange   before images are looked up
    late      the rest                                              on the complete event

The following stages run on the complete event. Rule: this changes the order of evaluation, never the result. The only
exception: an expression that raises may be skipped because a later condition fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace.changes.resume import fatal
from headrace.changes.stream import StreamSpec
from headrace.query.match import Predicate
from headrace.query.operation_memory import encoded_between
from headrace.query.stages.match_stage import Match
from headrace.query.stages.stage import Stage
from headrace.time_limit import limited_call
from headrace.values.bson import to_string

FIXED: Final = frozenset({"ns", "operationType"})
HEADER: Final = FIXED | {"clusterTime", "documentKey", "wallTime"}
IMAGES: Final = frozenset({"fullDocument", "fullDocumentBeforeChange"})

Document = dict[str, Any]
Test = Callable[[Document], bool]


def passes(tests: tuple[Test, ...], document: Document) -> bool:
    """Return whether the document meets every condition."""
    for test in tests:  # noqa: SIM110  (takes half as long as `all` with a generator)
        if not test(document):
            return False
    return True


class StreamPipeline:
    """The parsed stages of one stream, without state."""

    __slots__ = ("_steps", "before_lookup", "early", "fixed", "header", "late", "tests")

    def __init__(self, spec: StreamSpec) -> None:
        tests: dict[str, list[Test]] = {"fixed": [], "header": [], "early": [], "late": []}
        rest = list(spec.stages)
        while rest and isinstance(first := rest[0], Match):
            del rest[0]
            for condition in first.predicate.conjuncts():
                tests[_earliest(condition)].append(condition.test)
        self.fixed, self.header = tuple(tests["fixed"]), tuple(tests["header"])
        self.early, self.late = tuple(tests["early"]), tuple(tests["late"])
        self.before_lookup = (*self.fixed, *self.header, *self.early)
        self.tests = (*self.fixed, *self.header, *self.early, *self.late)
        self._steps = tuple(_step(stage) for stage in rest)

    @property
    def changes(self) -> bool:
        """Whether there are stages beyond the conditions."""
        return bool(self._steps)

    @limited_call
    def run(self, fields: Document) -> bytes | None:
        """Return the event after the stages that follow the conditions, or None if a stage drops it.

        Raises error 280 if the stages changed its `_id`.
        """
        document: Document | None = fields
        for step in self._steps:
            document = step(document)
            if document is None:
                return None
        assert document is not None
        _check_id(fields, document)
        return encoded_between(document)


def _earliest(condition: Predicate) -> str:
    looked_at = condition.fields()
    if looked_at is None:
        return "late"
    if looked_at <= FIXED:
        return "fixed"
    if looked_at <= HEADER:
        return "header"
    return "late" if looked_at & IMAGES else "early"


def _step(stage: Stage) -> Callable[[Any], Document | None]:
    each: Callable[[Any], Document | None] = stage.each  # type: ignore[attr-defined]  # all stages that a stream allows have it
    return each


def _check_id(before: Document, after: Document) -> None:
    expected, actual = before["_id"], after.get("_id")
    if actual is expected or (type(actual) is dict and actual == expected and list(actual) == list(expected)):
        return
    but = {"_id": after["_id"]} if "_id" in after else {}
    raise fatal(
        "Encountered an event whose _id field, which contains the resume token, was modified by the pipeline. "
        "Modifying the _id field of an event makes it impossible to resume the stream from that point. Only "
        "transformations that retain the unmodified _id field are allowed. "
        f"Expected: {to_string({'_id': expected})} but found: {to_string(but)}"
    )
