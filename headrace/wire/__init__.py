"""Conversion between bytes and messages: a state machine that does no I/O."""
