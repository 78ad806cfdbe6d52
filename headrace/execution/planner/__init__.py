"""The planner: which index, or none, leads to what a filter matches, and in which order."""
