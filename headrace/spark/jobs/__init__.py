"""Jobs: a file that says what is to run, running it, and what is reported of it."""
