"""What `/metrics` counts for the whole installation."""
