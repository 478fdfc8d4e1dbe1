"""Events: the log behind the commits, and its table."""
