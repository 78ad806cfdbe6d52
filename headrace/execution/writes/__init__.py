"""Writes of documents: updates and deletes of matches, inserts, and the outputs of pipelines."""
