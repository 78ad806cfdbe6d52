"""The planner: which index, or none, leads to what a filter matches, and in which order.

Rule: the whole filter is applied to what an index leads to, unless the bounds say all that it does; so an index can
only lose documents, never add any. `choice.py` has the order of the choice, `bounds.py` makes intervals of values from
the match expression, `index_access.py` ranges of keys from these, `trial.py` compares ways, and `plan_cache.py` keeps
the winner by shape. `python -m tests.differential` compares every way with the language over a list in memory.
"""
