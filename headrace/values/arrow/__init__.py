"""Change events as the columns of a table.

`event_columns.py` names the columns and fills them, from an event or without one.
`batches.py` makes Arrow batches of the columns. It alone imports pyarrow, so it is imported only when a client requests
Arrow.
"""
