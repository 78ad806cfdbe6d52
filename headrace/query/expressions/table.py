"""Every expression operator by name, and those known but not supported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace.query.expressions.node import Node, ParseContext

OPERATORS: Final[dict[str, Callable[[Any, ParseContext], Node]]] = {}

UNSUPPORTED: Final[dict[str, tuple[int, str]]] = {}
