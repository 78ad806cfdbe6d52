"""The store: documents, indexes, catalog, pre-images and the oplog, changed in one key-value transaction."""
