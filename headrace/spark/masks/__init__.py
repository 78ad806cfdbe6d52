"""Masks: values that are hashed, redacted, cut or left out before anything is written."""
