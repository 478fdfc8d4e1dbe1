"""Jobs: the list with its counts, one job, and what can be done to it."""
