"""Tables that the sinks write: mirrors of a collection, logs of events, and histories of documents."""
