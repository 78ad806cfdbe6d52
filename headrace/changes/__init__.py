"""Change events: oplog entries in the form in which `$changeStream` returns them."""
