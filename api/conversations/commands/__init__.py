"""`planq conversations`, `planq chat`."""
