"""Values: BSON, order, paths, keystrings, oplog positions, resume tokens, and change events as columns."""
