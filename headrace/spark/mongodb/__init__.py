"""Change events from one server, through pymongo: a stream that resumes after faults, and ranges of it in Arrow."""
