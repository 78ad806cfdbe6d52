"""The profiler: the commands that ran, and how long they took."""
