"""`planq agents`."""
