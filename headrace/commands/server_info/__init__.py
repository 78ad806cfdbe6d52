"""The commands about the server: its version, status, parameters and sessions."""
