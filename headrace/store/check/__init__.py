"""Checks a data directory that no server has open: its pages, its values, and its tables against each other."""
