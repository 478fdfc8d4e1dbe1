"""What a tool is to the rest of planq, and the spellings of its name."""
