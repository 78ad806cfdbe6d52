"""Things that can be asked for the next batch: documents, the oplog, change streams and what they share."""
