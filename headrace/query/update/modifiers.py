"""The parsers of update operators, by name. $rename has two paths and is parsed by `operator_update.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace.query.update.arithmetic import parse_bit, parse_inc, parse_mul
from headrace.query.update.arrays import parse_add_to_set, parse_pop, parse_pull, parse_pull_all
from headrace.query.update.assign import CompareNode, SetNode, SetOnInsertNode, UnsetNode, parse_current_date
from headrace.query.update.leaf_node import UpdateLeafNode
from headrace.query.update.push import parse_push

MODIFIERS: Final[dict[str, Callable[[str, Any, Any], UpdateLeafNode]]] = {
    "$addToSet": parse_add_to_set,
    "$bit": parse_bit,
    "$currentDate": parse_current_date,
    "$inc": parse_inc,
    "$max": lambda field, argument, collation: CompareNode(argument, 1, collation),
    "$min": lambda field, argument, collation: CompareNode(argument, -1, collation),
    "$mul": parse_mul,
    "$pop": parse_pop,
    "$pull": parse_pull,
    "$pullAll": parse_pull_all,
    "$push": parse_push,
    "$set": lambda field, argument, collation: SetNode(argument),
    "$setOnInsert": lambda field, argument, collation: SetOnInsertNode(argument),
    "$unset": lambda field, argument, collation: UnsetNode(),
}
