"""The commit of a client's transaction: at once, or in pieces behind a veil."""
