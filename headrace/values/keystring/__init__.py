"""Keystrings: BSON values as bytes that sort in MongoDB's order of values, and back (KeyString V1, ascending)."""
