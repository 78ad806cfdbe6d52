"""Temporary files in the data directory: what an operation spills, and copies that backups read."""
