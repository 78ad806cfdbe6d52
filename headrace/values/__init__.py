"""Order, paths, keystrings, positions and resume tokens."""
