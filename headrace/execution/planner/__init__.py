"""The planner: it chooses the index, or none, through which the matches of a filter are read, and the order.

Rule: the whole filter is applied to the documents that an index finds, unless the bounds express the whole filter. So a
faulty index can lose documents but never add any. `choice.py` has the steps of the choice. `bounds.py` makes intervals
of values from the match expression, and `index_access.py` makes ranges of keys from these. `trial.py` compares
accesses, and keeps the winner by query shape. `python -m tests.differential` compares every access with
the query language over a list in memory.
"""
