"""Writes of documents: matching ones changed or deleted, new ones inserted, and the outputs of pipelines."""
