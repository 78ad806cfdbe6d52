"""Indexes: the keys of documents, their entries in the tables, and those that older directories lack."""
