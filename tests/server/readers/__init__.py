"""Reads in reader processes."""
