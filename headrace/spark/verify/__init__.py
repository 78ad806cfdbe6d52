"""Checks that a sink equals its source, at one token, while clients write."""

from headrace.spark.verify.compare import compare

__all__ = ["compare"]
