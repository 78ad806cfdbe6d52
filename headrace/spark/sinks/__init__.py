"""Sinks: the targets of a stream of rows. Each applies a batch so that its target is right after any crash.

`contract.py` states what every sink must do, `sink_options.py` makes a sink from its kind and options, and
`foreach_batch.py` gives it to Spark. The tables that sinks write are in `tables/`.
"""
