"""Privilege requirements that depend on the request: pipelines, writes, cursors and other clients' operations."""
