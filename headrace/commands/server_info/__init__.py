"""The commands about the server: what it is, what it does, its parameters and sessions."""
