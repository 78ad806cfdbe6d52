"""Checksums of stored values: appended at each write and compared at each read."""
