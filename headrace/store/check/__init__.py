"""Checks of a data directory that no server has open: its pages, its values, and the consistency of its tables."""
