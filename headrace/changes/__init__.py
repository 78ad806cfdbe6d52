"""Events: an oplog entry, told the way a client hears it."""
