"""Checksums of what is stored: appended to every value when it is written, compared whenever it is read."""
