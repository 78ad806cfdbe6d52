"""Cursors: documents, the oplog and change streams read batch by batch, and what streams share."""
