"""Temporary files in the data directory: spilled data of operations, and copies for backups."""
