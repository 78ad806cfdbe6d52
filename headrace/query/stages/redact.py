"""`$redact`: at each level of a document, keep the level, leave it out, or look at the levels below.

Rule: the expression is evaluated with CURRENT as the level. A level is a document, also one in an array. `$$KEEP`,
`$$PRUNE` and `$$DESCEND` are the strings "keep", "prune" and "descend", as in the server.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from headrace.errors import CommandError
from headrace.query.expressions import Env, parse_expression, with_more
from headrace.query.expressions.expression import Evaluate
from headrace.query.expressions.value_text import as_text
from headrace.query.stages.stage import Document, DocumentStage, PipelineContext, Stage
from headrace.values.bson import MISSING

DECISIONS: Final = {"DESCEND": "descend", "KEEP": "keep", "PRUNE": "prune"}


def parse_redact(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$redact: expression}`."""
    scope = context.parse_context()
    scope = replace(scope, constants=with_more(scope.constants, DECISIONS)).binding("CURRENT")
    redactor = Redactor(parse_expression(spec, scope).evaluate, context)
    return (DocumentStage(name, spec, redactor.redact),)


class Redactor:
    """Applies one decision expression to documents."""

    __slots__ = ("_bound", "_decide")

    def __init__(self, decide: Evaluate, context: PipelineContext) -> None:
        self._decide = decide
        self._bound = context.bound

    def redact(self, document: Document) -> Document | None:
        """Return the rest of the document; None if nothing is left."""
        return self._level(document, document)

    def _level(self, level: Document, root: Document) -> Document | None:
        decision = self._decide(Env(root, {**self._bound, "CURRENT": level}))
        if decision == "keep":
            return level
        if decision == "prune":
            return None
        if decision != "descend":
            raise CommandError(
                17053,
                "$redact's expression should not return anything aside from the variables $$KEEP, $$DESCEND, and "
                f"$$PRUNE, but returned {as_text(decision)}",
            )
        return {k: redacted for k, v in level.items() if (redacted := self._below(v, root)) is not MISSING}

    def _below(self, value: Any, root: Document) -> Any:
        if type(value) is dict:
            redacted = self._level(value, root)
            return MISSING if redacted is None else redacted
        if type(value) is list:
            return [redacted for item in value if (redacted := self._below(item, root)) is not MISSING]
        return value
