"""Jobs: the file that describes a job, running it, and reports on it."""
