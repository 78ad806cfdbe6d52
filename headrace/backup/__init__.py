"""Backups: an archive of snapshots and of the oplog, from which any moment of a data directory is restored."""
