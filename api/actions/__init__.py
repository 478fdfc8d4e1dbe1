"""Job actions: one command for all jobs that a filter selects."""
