"""Change events from one server, through pymongo: a stream that survives faults, and ranges of it as Arrow batches."""
