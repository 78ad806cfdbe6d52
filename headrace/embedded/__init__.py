"""A store opened inside a program. Its methods run commands in the calling thread, without a socket or a server."""
