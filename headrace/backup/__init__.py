"""Backups: an archive of snapshots and of the oplog, and restores of a data directory to any moment."""
