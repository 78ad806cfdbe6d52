"""Every stage MongoDB knows: those that Headrace runs, and those it does not with the error it answers."""

from __future__ import annotations

from typing import Final

from headrace.query.stages.stage import Parser

STAGES: Final[dict[str, Parser]] = {}
