"""Checks that a sink equals its source, at one token, while clients write."""

from headrace.spark.verify.comparison import compare

__all__ = ["compare"]
