"""A store opened inside a program: its calls run commands in the thread that calls, without socket and server."""
