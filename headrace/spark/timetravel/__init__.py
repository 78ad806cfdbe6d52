"""A collection at present or in the past: snapshots, archives of events, and the documents at a token."""
