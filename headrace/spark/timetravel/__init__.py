"""A collection now or as it was: snapshots, archives of events, and the documents at a token."""
