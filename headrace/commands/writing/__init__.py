"""The commands that write documents, and those that end a transaction."""
