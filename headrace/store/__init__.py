"""What is kept: documents, indexes, catalog, images and the oplog, changed in one key-value transaction."""
