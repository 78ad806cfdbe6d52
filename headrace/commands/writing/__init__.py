"""The commands that write documents, and the commands that end a transaction."""
