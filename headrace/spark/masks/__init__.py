"""Masks: values that are hashed, redacted, truncated or omitted before anything is written."""
