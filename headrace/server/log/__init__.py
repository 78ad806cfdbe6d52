"""Destinations of log lines: rotated files, and the last lines in memory."""
