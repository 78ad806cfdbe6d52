"""Where log lines go: files that are rotated, the last lines in memory."""
