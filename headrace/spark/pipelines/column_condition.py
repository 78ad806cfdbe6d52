"""A condition in SQL, on the columns of events' rows, that is true for every row that a filter matches.

With it, Spark drops rows before it gives them to Python. The evaluator decides on all other rows, so the condition
covers only common and simple filters: operation and namespace, equal to a text or in a list of texts. A row without
such a column may have the field in `other`, with another type, and is never dropped.
"""

from __future__ import annotations

import re
from typing import Final

from headrace.query.match.match_expression import And, LeafMatchExpression, MatchExpression, MatchType, Or

_COLUMNS: Final = {"ns.coll": "collection", "ns.db": "database", "operationType": "operationType"}
_PLAIN: Final = re.compile(r"[\w.-]+")


def column_condition(node: MatchExpression) -> str:
    """Return the condition; empty if the columns cannot decide. Texts are compared without a collation."""
    if isinstance(node, And):
        return " AND ".join(filter(None, map(column_condition, node.children)))
    if isinstance(node, Or):
        each = list(map(column_condition, node.children))
        return f"({' OR '.join(each)})" if each and all(each) else ""
    if not isinstance(node, LeafMatchExpression) or node.path not in _COLUMNS:
        return ""
    wanted = {MatchType.EQ: [node.wanted], MatchType.IN: node.argument}.get(node.kind)
    if type(wanted) is not list or not all(type(each) is str and _PLAIN.fullmatch(each) for each in wanted):
        return ""
    column = _COLUMNS[node.path]
    texts = ", ".join(f"'{each}'" for each in wanted)
    return f"({column} IS NULL OR {column} IN ({texts}))" if wanted else ""
