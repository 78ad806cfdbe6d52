"""Checksums of what is stored: put behind every value as it is written, compared whenever it is read."""
