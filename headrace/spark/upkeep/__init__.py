"""Upkeep of Delta tables that a job fills: small files, old files, old rows, the log."""
