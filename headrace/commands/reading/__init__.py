"""The commands that read documents, and their cursors."""
