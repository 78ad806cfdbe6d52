"""What commands have done, and how long they took: the profiler."""
