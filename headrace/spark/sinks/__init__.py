"""Sinks: what a stream of rows is written to. Each takes a batch and ends in the right state whatever crashes.

`batch.py` has the contract; `open.py` makes a sink from its kind and options.
"""
