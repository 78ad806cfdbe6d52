"""Sinks: what a stream of rows is written to. Each applies a batch so that its target is right whatever crashes.

`contract.py` is what each fulfils, `sink_options.py` makes one from its kind and options, `foreach_batch.py` gives it
to Spark. The tables that they write are in `tables/`.
"""
