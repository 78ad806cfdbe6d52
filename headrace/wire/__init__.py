"""Bytes to messages and back: a state machine that does no I/O."""
