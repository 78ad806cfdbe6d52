"""Whether a sink holds what its source says, at one token, while writers write."""

from headrace.spark.verify.compare_mirror import compare

__all__ = ["compare"]
